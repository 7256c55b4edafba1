"""What is new since the snapshot before, and how often one is due."""

import pytest

from psgd.metrics import snapshot
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.snapshot import Snapshots


@pytest.fixture
def at(monkeypatch):
    """Sets how long the run has lasted."""
    now = [0.0]
    monkeypatch.setattr(RunMetrics, "elapsed_s", lambda metrics: now[0])
    return lambda seconds: now.__setitem__(0, seconds)


def test_speeds_are_those_since_the_snapshot_before(at):
    metrics, snapshots = RunMetrics(2), Snapshots()
    at(2.0)
    metrics.applied(0, 10, 1.0, staleness=4)
    metrics.progress(10, 1, 0.1)
    first = snapshots.take(metrics)
    assert (first["samples_per_second"], first["staleness"], first["largest_staleness"]) == (5.0, 4.0, 4)
    at(3.0)
    for staleness in (0, 1):
        metrics.applied(1, 30, 1.0, staleness)
    metrics.progress(70, 3, 0.1)
    metrics.held(0, 1, metrics._started, metrics._started + 0.25)
    second = snapshots.take(metrics)
    assert (second["samples_per_second"], second["staleness"], second["largest_staleness"]) == (60.0, 0.5, 4)
    assert second["pushes"] == [1, 2] and second["waited_s"] == pytest.approx([0.25, 0.0])
    assert (second["time"], second["samples"], second["steps"]) == (3.0, 70, 3)
    at(4.0)
    assert snapshots.take(metrics)["staleness"] is None


@pytest.mark.parametrize(("workers", "apart"), [(1, snapshot.LEAST_S), (1000, 10 * snapshot.LEAST_S)])
def test_they_are_due_now_and_then(at, workers, apart):
    metrics, snapshots = RunMetrics(workers), Snapshots()
    due = []
    for tenth in range(301):
        at(tenth / 10)
        if snapshots.due(metrics):
            due.append(tenth / 10)
            snapshots.take(metrics)
    assert due == pytest.approx([apart * n for n in range(1, 1 + int(30 / apart))])


def test_a_resumed_runs_first_second_is_not_all_that_it_did_before(at):
    metrics, snapshots = RunMetrics(1), Snapshots()
    at(100.0)
    metrics.progress(1000, 10, 0.1)
    assert not snapshots.due(metrics)
    at(101.0)
    metrics.progress(1050, 11, 0.1)
    assert snapshots.due(metrics)
    assert snapshots.take(metrics)["samples_per_second"] == 50.0
