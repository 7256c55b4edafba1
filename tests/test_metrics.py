import math

import pytest

from psgd.metrics import RunMetrics
from psgd.wire import FORMAT, Header, Kind


def push(worker, version, samples, loss):
    return Header(FORMAT, 0, Kind.PUSH, worker, 0, 1, 1, 0, version, samples, 0, 0, loss, 0.0)


def test_staleness_and_losses():
    metrics = RunMetrics(2)
    assert math.isnan(metrics.loss)
    metrics.applied(push(0, 3, 10, 2.0), 3)
    metrics.applied(push(1, 1, 30, 1.0), 4)
    assert metrics.loss == pytest.approx(1.25)
    assert metrics.staleness_summary() == {"mean": 1.5, "max": 3, "histogram": {"0": 1, "3": 1}}


def test_an_epoch_is_told_once_and_its_loss_kept():
    told = []
    metrics = RunMetrics(1, lambda m, event: told.append((event, m.epoch)), samples_per_epoch=100)
    metrics.applied(push(0, 0, 100, 4.0), 0)
    metrics.progress(100, 1, 0.1)
    metrics.applied(push(0, 1, 150, 2.0), 1)
    assert metrics.loss == 4.0
    metrics.progress(250, 2, 0.1)
    assert metrics.loss == 2.0
    assert [event for event in told if event[0] == "epoch"] == [("epoch", 1), ("epoch", 2)]


def test_target():
    metrics = RunMetrics(1, target_accuracy=0.9)
    metrics.report(Header(FORMAT, 0, Kind.REPORT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5, 1.0))
    assert not metrics.stop
    metrics.report(Header(FORMAT, 0, Kind.REPORT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.9, 1.0))
    assert metrics.stop
    assert metrics.accuracy == 0.9
