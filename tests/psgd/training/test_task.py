"""A run's data and model: rank 0 reads and checks, all have the same."""

import numpy as np
import pytest

from psgd.config import configure
from psgd.kernels.errors import UsageError
from psgd.training.task import open_task


def write(folder, samples=30, bad=False):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, 4)).astype(np.float32)
    if bad:
        x[3, 2] = np.nan
    y = np.arange(samples) % 3
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return x


@pytest.mark.ranks(1, 3)
def test_all_ranks_have_the_same_task_and_data_where_it_is_needed(comm, tmp_path):
    if comm.rank == 0:
        write(tmp_path)
    comm.Barrier()
    config = configure(dataset=str(tmp_path / "data.npz"), model="softmax")
    task = open_task(config, comm, needs_data=comm.rank == comm.size - 1)
    assert (task.samples, task.test_samples) == (30, 6)
    assert task.model.layout.size == 4 * 3 + 4 + 3 + 13  # aligned to 16 elements
    assert len(set(comm.allgather((task.statistics.mean, task.statistics.std)))) == 1
    assert (task.dataset is not None) == (comm.rank in (0, comm.size - 1))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("what", ["missing", "nan", "model"])
def test_what_cannot_be_is_one_error_on_all(comm, tmp_path, what):
    if comm.rank == 0 and what != "missing":
        write(tmp_path, bad=what == "nan")
    comm.Barrier()
    config = configure(dataset=str(tmp_path / "data.npz"), model="cnn" if what == "model" else "mlp")
    with pytest.raises(UsageError) as caught:
        open_task(config, comm, needs_data=True)
    assert len(set(comm.allgather(str(caught.value)))) == 1
    assert ("model cnn needs images" in str(caught.value)) == (what == "model")
