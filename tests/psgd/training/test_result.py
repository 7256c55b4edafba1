"""The result: sums over the workers on rank 0, None elsewhere."""

from types import SimpleNamespace

import pytest

from psgd.config import TrainConfig
from psgd.metrics.run_metrics import RunMetrics
from psgd.training.result import collect


class Evaluated:
    """A backend whose evaluation tells which part of how many it was asked for."""

    def evaluate(self, index, workers):
        return 10 * (index + 1), float(workers)

    def wait(self):
        pass


@pytest.mark.ranks(3)
def test_sums(comm):
    server = comm.rank == 0
    connection = SimpleNamespace(
        **{"mesh": SimpleNamespace(index=comm.rank - 1), "workers": 2, "servers": 1, "checkpoint": None},
        **{"skipped": 3 * comm.rank, "leaving": False, "bytes_sent": 100 + comm.rank, "bytes_received": 7},
    )
    trainer = None if server else SimpleNamespace(backend=Evaluated())
    metrics = RunMetrics(2, samples_per_epoch=50)
    metrics.applied(0, 4, 0.25, 0)
    metrics.dropped[1] = 1
    result = collect(TrainConfig(lr=0.5), comm, connection, metrics, trainer, test_samples=40)
    assert (result is None) == (comm.rank != 0)
    if result is not None:
        assert (result["test_accuracy"], result["test_loss"]) == (30 / 40, 4 / 40)
        assert (result["bytes_sent"], result["bytes_received"]) == (203, 14)
        assert (result["lr"], result["workers"], result["servers"], result["train_samples"]) == (0.5, 2, 1, 50)
        assert result["workers_dropped"] == [3, 7] and result["diverged"] is False
        assert result["mpi"].split()[-1][0].isdigit() and result["requeue"] is False
