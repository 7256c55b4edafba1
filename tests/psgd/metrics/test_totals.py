"""What worker 0's metrics are told where no push is seen alone."""

from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Shown, Sums, add


def test_sums_add():
    assert add(Sums(1, 20, 0.5), Sums(3, 4, 0.25)) == Sums(4, 24, 0.75)


def test_only_what_is_new_is_counted():
    metrics = RunMetrics(2)
    shown = Shown(metrics)
    shown.count(Sums(2, 8, 4.0), 0.5)
    shown.count(Sums(3, 8, 4.0), 0.25)  # no samples: nothing to tell
    assert (metrics.samples, metrics.steps, metrics.lr, metrics.loss) == (8, 2, 0.5, 0.5)
    shown.count(Sums(5, 16, 20.0), 0.125)
    assert (metrics.samples, metrics.steps, metrics.lr, metrics.loss) == (16, 5, 0.125, 20 / 16)


def test_after_a_checkpoint_the_part_before_it_is_not_counted_again():
    metrics = RunMetrics(1)
    shown = Shown(metrics)
    shown.begin(Sums(10, 100, 50.0))
    shown.count(Sums(11, 110, 60.0), 0.5)
    assert (metrics.samples, metrics.steps, metrics.loss) == (110, 11, 1.0)


def test_what_each_worker_alone_knows():
    metrics = RunMetrics(2)
    Shown(metrics).complete(
        [
            {"steps": 3, "staleness": [(0, 2), (1, 1)], "waited": 0.5, "computed": 2.0, "reports": []},
            {"steps": 4, "staleness": [(1, 4)], "waited": 0.25, "computed": 1.0, "reports": [(0.5, 1.5), (0.75, 1.0)]},
        ]
    )
    assert metrics.pushes == [3, 4]
    assert dict(metrics.staleness) == {0: 2, 1: 5}
    assert (metrics.waited_s, metrics.computed_s) == ([0.5, 0.25], [2.0, 1.0])
    assert (metrics.accuracy, metrics.test_loss) == (0.75, 1.0)
