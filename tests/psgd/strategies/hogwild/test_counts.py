"""What worker 0 learns of all workers, while they train and at the end, without a message in between."""

import math

import numpy as np
import pytest

from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Sums
from psgd.strategies.hogwild.counts import HogwildCounts
from psgd.worker.serverless.shared_parameters import SharedParameters


class Alone:
    """One node, no others."""

    before = Sums(0, 0, 0.0)

    def __init__(self, leads):
        self.leads = leads

    def far(self):
        return self.before


def made(comm, tallies=False, **options):
    metrics = RunMetrics(comm.size, **options)
    memory = SharedParameters(comm, np.zeros(10), tallies)
    counts = HogwildCounts(metrics, comm.rank, memory, Alone(comm.rank == 0))
    counts.begin()
    comm.Barrier()
    return counts, memory, metrics


@pytest.mark.ranks(3)
def test_steps_samples_and_losses_are_read_from_memory(comm):
    counts, memory, metrics = made(comm)
    for _ in range(comm.rank + 1):
        memory.lines.count(4, 0.5)
    comm.Barrier()
    counts.show(math.inf, 0.25)
    if comm.rank == 0:
        assert metrics.pushes == [1, 2, 3]
        assert (metrics.samples, metrics.steps, metrics.loss, metrics.lr) == (24, 6, 0.5, 0.25)
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_target_that_worker_0_reports_stops_all(comm):
    counts, memory, _ = made(comm, target_accuracy=0.5)
    if comm.rank == 0:
        counts.report(0.25, 1.0)
        assert memory.lines.totals()[3] == 0
        counts.report(0.75, 0.5)
    comm.Barrier()
    assert memory.lines.totals()[3] == 1
    comm.Barrier()


@pytest.mark.ranks(3)
def test_at_the_end_all_is_put_together(comm):
    counts, memory, metrics = made(comm, tallies=True)
    for step in range(comm.rank + 1):
        memory.lines.count(2, 1.0)
        counts.staleness[step] += 1
        counts.tallied += 10
    comm.Barrier()
    if comm.rank == 0:
        memory.tally[:] = 6  # as many as steps were made,
        memory.tally[3] = 4  # but for two that were lost
    if comm.rank == 2:
        counts.report(0.5, 0.25)
    comm.Barrier()
    assert counts.complete(comm, 0.5 + comm.rank, 2.0, 0.125, list(range(comm.size))) == 6
    assert counts.lost == 2
    if comm.rank == 0:
        assert metrics.pushes == [1, 2, 3] and dict(metrics.staleness) == {0: 3, 1: 2, 2: 1}
        assert metrics.waited_s == [0.5, 1.5, 2.5] and metrics.computed_s == [2.0] * 3
        assert (metrics.accuracy, metrics.test_loss, metrics.samples) == (0.5, 0.25, 12)
    comm.Barrier()
