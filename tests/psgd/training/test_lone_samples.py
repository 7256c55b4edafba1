"""Runs of which some pass has one sample: found by counting, and refused where a layer cannot take it."""

from types import SimpleNamespace

import pytest
from mpi4py import MPI

from psgd.config import configure
from psgd.data.sampler import Sampler
from psgd.kernels.errors import AgreedUsageError
from psgd.training import lone_samples
from psgd.training.lone_samples import sizes


@pytest.mark.parametrize(("samples", "workers", "batch"), [(1497, 1, 34), (1497, 2, 34), (7, 3, 4), (2, 3, 8)])
def test_sizes_are_those_of_the_samplers(samples, workers, batch):
    samplers = [Sampler(samples, workers, worker, batch, 0) for worker in range(workers)]
    taken = {len(each.batch(0, step)) for each in samplers for step in range(each.steps)}
    assert sizes(samples, workers, batch, batch) == taken - {0}


def test_a_batch_that_does_not_divide_has_a_shorter_microbatch():
    assert sizes(57, 1, 32, 8) == {8, 1}  # 32, and 25: three of 8, and one sample


def run(batch, needs, mesh=None):
    task = SimpleNamespace(samples=1497, model=SimpleNamespace(needs_several=needs))
    sizes = None if mesh is None else SimpleNamespace(sizes={"pipe": mesh})
    roles = SimpleNamespace(workers=1, mesh=sizes)
    assert lone_samples.checked(task, configure(batch_size=batch, model="net.py:make"), roles, MPI.COMM_SELF) is task


def test_the_message_names_layer_and_a_size_that_does():
    with pytest.raises(AgreedUsageError) as error:
        run(34, lambda: "layer 2 (BatchNorm1d)")
    assert "layer 2 (BatchNorm1d)" in str(error.value) and "last batch" in str(error.value)
    assert str(error.value).endswith("Use --batch-size 33")
    run(33, lambda: pytest.fail("no batch has one sample"))
    run(34, lambda: None)
    with pytest.raises(AgreedUsageError, match="microbatches of 4") as error:
        run(32, lambda: "layer 2 (BatchNorm1d)", mesh=2)
    run(int(str(error.value).split()[-1]), lambda: "layer 2 (BatchNorm1d)", mesh=2)
