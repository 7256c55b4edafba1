import math

import pytest

from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.wait_log import WaitLog


def test_staleness_and_losses():
    metrics = RunMetrics(2)
    assert math.isnan(metrics.loss)
    metrics.applied(0, 10, 2.0, staleness=3 - 3)
    metrics.applied(1, 30, 1.0, staleness=4 - 1)
    assert metrics.loss == pytest.approx(1.25)
    assert metrics.staleness_summary() == {"mean": 1.5, "max": 3, "histogram": {"0": 1, "3": 1}}


def test_an_epoch_is_told_once_and_its_loss_kept():
    told = []
    metrics = RunMetrics(1, lambda m, event: told.append((event, m.epoch)), samples_per_epoch=100)
    metrics.applied(0, 100, 4.0, staleness=0 - 0)
    metrics.progress(100, 1, 0.1)
    metrics.applied(0, 150, 2.0, staleness=1 - 1)
    assert metrics.loss == 4.0
    metrics.progress(250, 2, 0.1)
    assert metrics.loss == 2.0
    assert [event for event in told if event[0] == "epoch"] == [("epoch", 1), ("epoch", 2)]


def test_target():
    metrics = RunMetrics(1, target_accuracy=0.9)
    metrics.report(0.5, 1.0)
    assert not metrics.stop
    metrics.report(0.9, 1.0)
    assert metrics.stop
    assert metrics.accuracy == 0.9


def test_several_pushes_at_once_count_as_one_by_one():
    one, sums = RunMetrics(2), RunMetrics(2)
    for samples, loss in ((10, 2.0), (30, 1.0), (20, 4.0)):
        one.applied(1, samples, loss, staleness=5 - 3)
    sums.count(1, 3, 60, 10 * 2.0 + 30 * 1.0 + 20 * 4.0, staleness=2)
    assert sums.pushes == one.pushes == [0, 3]
    assert dict(sums.staleness) == dict(one.staleness) == {2: 3}
    assert sums.loss == pytest.approx(one.loss)
    sums.count(0, 0, 60, 60.0)  # pushes counted elsewhere
    assert sums.pushes == [0, 3] and dict(sums.staleness) == {2: 3}
    assert sums.loss == pytest.approx((130 + 60) / 120)


def test_waits_are_counted_and_kept_from_the_start_on():
    metrics = RunMetrics(3, waits=WaitLog())
    start = metrics._started
    metrics.held(2, 0, start + 1.0, start + 1.5)
    metrics.held(2, 1, start + 2.0, start + 2.0005)  # too short for a row
    assert metrics.waited == [0, 0, 2] and metrics.dropped == [0, 0, 0]
    assert metrics.waited_s == pytest.approx([0, 0, 0.5005])
    assert metrics.waits.take() == {"rows": [(2, 0, 1.0, 1.5)]}
    metrics.ended(2, 0.75, 3.0)
    assert (metrics.waited_s[2], metrics.computed_s[2]) == (0.75, 3.0)


def test_patience_ends_after_so_many_evaluations_that_were_not_better(capsys):
    metrics = RunMetrics(1, patience=2)
    seen = []
    for accuracy in (0.5, 0.4, 0.6, 0.6, math.nan):
        metrics.report(accuracy, 1.0)
        seen.append((metrics.best_accuracy, metrics.since_best, metrics.stop))
    assert seen == [(0.5, 0, False), (0.5, 1, False), (0.6, 0, False), (0.6, 1, False), (0.6, 2, True)]
    assert capsys.readouterr().err.count("stopping early: the last 2 evaluations were not better") == 1


def test_what_was_best_is_known_after_resuming_also_from_a_checkpoint_of_before():
    metrics, resumed, older = RunMetrics(1), RunMetrics(1), RunMetrics(1)
    for accuracy in (0.7, 0.5):
        metrics.report(accuracy, 1.0)
    facts = metrics.facts()
    resumed.restore(facts)
    assert (resumed.best_accuracy, resumed.since_best) == (0.7, 1)
    older.restore({name: value for name, value in facts.items() if name not in ("best_accuracy", "since_best")})
    assert (older.best_accuracy, older.since_best) == (None, 0)
