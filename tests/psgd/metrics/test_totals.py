"""Sums over workers, and worker 0's metrics fed with them."""

from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Shown, Sums, add


def test_sums_add_up():
    assert add(Sums(1, 10, 0.5), Sums(2, 20, 1.5)) == Sums(3, 30, 2.0)


def test_only_what_is_new_is_counted():
    metrics = RunMetrics(2)
    shown = Shown(metrics)
    shown.begin(Sums(1, 10, 5.0))  # of a run that went before
    shown.count(Sums(3, 30, 9.0), 0.5)
    shown.count(Sums(3, 30, 9.0), 0.25)  # nothing new: not even the rate
    assert (metrics.samples, metrics.steps, metrics.lr) == (30, 3, 0.5)
    assert metrics.loss == 4.0 / 20


def test_what_each_worker_knows_is_taken_at_the_end():
    metrics = RunMetrics(2)
    one = {"steps": 3, "staleness": [(0, 2), (1, 1)], "waited": 0.5, "computed": 2.0, "reports": [(0.75, 0.5)]}
    other = {"steps": 2, "staleness": [(1, 2)], "waited": 1.5, "computed": 1.0, "reports": []}
    Shown(metrics).complete([one, other])
    assert metrics.pushes == [3, 2] and dict(metrics.staleness) == {0: 2, 1: 3}
    assert metrics.waited_s == [0.5, 1.5] and metrics.computed_s == [2.0, 1.0]
    assert (metrics.accuracy, metrics.test_loss) == (0.75, 0.5)
