"""A run's data and model: rank 0 reads and checks, all have the same."""

import numpy as np
import pytest

from psgd.config import configure
from psgd.data import load
from psgd.kernels.errors import AgreedContractError, AgreedUsageError, UsageError
from psgd.training import task as tasks
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


def changed(x, y, how):
    """The data as a stale copy on one node may have it."""
    if how == "samples":
        return x[:20], y[:20]
    if how == "shape":
        return x[:, :3], y
    if how == "classes":
        return x, y % 2
    if how == "dtype of samples":
        return x.astype(np.float64), y
    if how == "dtype of labels":
        return x, y.astype(np.int32)
    if how == "value":
        x = x.copy()
        x[7, 2] += 1e-3
    if how == "label":
        y = y.copy()
        y[7] = (y[7] + 1) % 3
    return x, y


DIFFERENCES = {
    "samples": "training samples: 30 on rank 0 on .*, rank 1 on .*; 20 on rank 2 on ",
    "shape": r"sample shape: \[4\] on rank 0 on .*; \[3\] on rank 2 on ",
    "classes": "classes: 3 on rank 0 on .*; 2 on rank 2 on ",
    "dtype of samples": 'dtype of samples: "float32" on rank 0 on .*; "float64" on rank 2 on ',
    "dtype of labels": 'dtype of labels: "int64" on rank 0 on .*; "int32" on rank 2 on ',
    "value": 'checksum: "[0-9a-f]{32}" on rank 0 on .*; "[0-9a-f]{32}" on rank 2 on ',
    "label": 'checksum: "[0-9a-f]{32}" on rank 0 on .*; "[0-9a-f]{32}" on rank 2 on ',
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("how", DIFFERENCES)
def test_other_data_on_one_rank_is_one_error_on_all(comm, tmp_path, how):
    x, y = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3
    x, y = changed(x, y, how) if comm.rank == 2 else (x, y)
    mine = tmp_path / f"{comm.rank}.npz"
    np.savez(mine, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    real, tasks.read_dataset = tasks.read_dataset, lambda config: load(mine)
    try:
        by_contents = how in ("value", "label")
        if by_contents:
            open_task(configure(dataset="copies", model="softmax"), comm, needs_data=True)  # nobody looks
        config = configure(dataset="copies", model="softmax", check_data=by_contents)
        with pytest.raises(
            AgreedContractError, match=f"^dataset copies: all ranks need .*{DIFFERENCES[how]}"
        ) as caught:
            open_task(config, comm, needs_data=True)
        assert len(set(comm.allgather(str(caught.value)))) == 1
        open_task(config, comm, needs_data=comm.rank == 1)  # the rank with other data needs none
    finally:
        tasks.read_dataset = real


@pytest.mark.ranks(3)
def test_data_that_one_rank_cannot_read_is_one_error_on_all(comm, tmp_path):
    if comm.rank == 0:
        write(tmp_path)
    comm.Barrier()
    path = tmp_path / ("none" if comm.rank == 1 else "data.npz")
    real, tasks.read_dataset = tasks.read_dataset, lambda config: load(path)
    try:
        with pytest.raises(AgreedUsageError, match=r"^rank 1 on \S+: dataset '.*none': neither a known name nor"):
            open_task(configure(dataset="data", model="softmax"), comm, needs_data=True)
    finally:
        tasks.read_dataset = real
