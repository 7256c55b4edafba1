"""What worker 0 learns of the workers that share a centre, while they train, at the end, and after a checkpoint."""

import numpy as np
import pytest

from psgd.kernels.memory import counters
from psgd.metrics.run_metrics import RunMetrics
from psgd.strategies.easgd.shared_centre import SharedCentre
from psgd.strategies.easgd.shared_counts import SharedCounts


def made(comm, **options):
    memory = SharedCentre(comm, list(range(comm.size)), np.zeros(5), locks=True)
    metrics = RunMetrics(comm.size, **options)
    return SharedCounts(metrics, comm, memory), memory, metrics


def trained(comm):
    """Worker k takes k + 1 steps of 4 samples; the last of them lie behind its last exchange."""
    counts, memory, metrics = made(comm)
    counts.lr = 0.25
    for step in range(comm.rank + 1):
        counts.note(4, 0.5)
        counts.note(0, float("nan"))  # no step
        if step == 0:
            counts.exchanged(3)
    if comm.rank == 0:
        memory.exchanges = 7
    comm.Barrier()
    return counts, memory, metrics


@pytest.mark.ranks(3)
def test_worker_0_counts_each_step_once(comm):
    counts, _, metrics = trained(comm)
    for _ in range(2):
        counts.show()
        expected = ([1, 2, 3], 24, 7, 0.5, 0.25) if comm.rank == 0 else ([0, 0, 0], 0, 0)
        assert (metrics.pushes, metrics.samples, metrics.steps, metrics.loss, metrics.lr)[: len(expected)] == expected
    comm.Barrier()


@pytest.mark.ranks(3)
def test_at_the_end_it_has_the_staleness_and_the_seconds_of_all(comm):
    counts, _, metrics = trained(comm)
    counts.exchanged(5)  # behind the last exchange: none of worker 0, one of worker 1, two of worker 2
    counts.complete(comm, list(range(comm.size)), comm.rank + 0.5, comm.rank + 2.0)
    if comm.rank == 0:
        assert {stale: n for stale, n in metrics.staleness.items() if n} == {3: 3, 5: 3}
        assert (list(metrics.waited_s), list(metrics.computed_s)) == ([0.5, 1.5, 2.5], [2.0, 3.0, 4.0])
        assert (metrics.pushes, metrics.samples, metrics.steps) == ([1, 2, 3], 24, 7)
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_target_that_worker_0_reports_stops_all(comm):
    counts, memory, _ = made(comm, target_accuracy=0.5)
    counts.report(0.25, 1.0)
    comm.Barrier()
    assert memory.lines.totals()[3] == 0
    comm.Barrier()
    if comm.rank == 0:
        counts.report(0.75, 0.5)
    comm.Barrier()
    assert memory.lines.totals()[3] == 1
    comm.Barrier()


@pytest.mark.ranks(2)
def test_worker_0_passes_a_stop_on_when_it_looks(comm):
    counts, memory, metrics = made(comm)
    metrics.stop = comm.rank == 0
    assert memory.lines.totals()[3] == 0
    comm.Barrier()
    counts.look()
    comm.Barrier()
    assert memory.lines.totals()[3] == 1
    comm.Barrier()


@pytest.mark.ranks(3)
def test_a_resumed_run_counts_only_what_is_new(comm):
    facts = trained(comm)[0].facts(6)
    rank = comm.rank
    assert facts["exchange"] == [6, 1, rank + 1] and facts["staleness"] == [[3, 1]]
    assert (facts["line"], facts["loss"]) == ([rank + 1, 4 * (rank + 1)], 2.0 * (rank + 1))
    counts, memory, metrics = made(comm)
    assert counts.restore(facts) == 6 and counts.facts(6) == facts
    comm.Barrier()
    counts.begin()
    comm.Barrier()
    counts.note(4, 1.0)
    memory.lines.put(counters.DONE, 1)
    comm.Barrier()
    counts.show()
    if rank == 0:
        assert (metrics.pushes, metrics.samples, metrics.loss) == ([1, 1, 1], 36, 1.0)
    comm.Barrier()
