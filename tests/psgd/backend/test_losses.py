"""Losses as numbers that are read late: their arithmetic is that of numbers, and nothing is read before it is asked."""

import json

import numpy as np
import pytest

from psgd.backend.losses import KEPT, Loss
from psgd.metrics.run_metrics import RunMetrics


class Told:
    """In place of the GPU's memory: the loss of step k is k / 4."""

    def __init__(self):
        self.reads = 0

    def read(self, parts):
        self.reads += 1
        return sum(weight * step / 4 for step, weight in parts)


def loss(told, step):
    return Loss(told, [(step, 1.0)])


def test_sums_are_read_once_when_asked():
    told = Told()
    total = 0.0
    for step in range(1, 9):
        total += 3 * loss(told, step)
        total += np.int64(2) * loss(told, step)
    assert told.reads == 0
    row = np.zeros(3)
    row[:] = (1.0, total, True)
    assert row.tolist() == [1.0, 5 * 36 / 4, 1.0]
    assert float(total) == 45.0 == total / 1
    assert told.reads == 1


def test_sums_do_not_change_their_parts():
    told = Told()
    first, second = loss(told, 4), loss(told, 8)
    both = first + second
    both += 1.0
    assert (float(first), float(second), float(both), float(both - first)) == (1.0, 2.0, 4.0, 3.0)


def test_long_sums_are_read_before_their_parts_are_overwritten():
    told = Told()
    total = 0.0
    for _ in range(KEPT):
        total += loss(told, 1)
    assert told.reads >= 3
    assert float(total) == pytest.approx(KEPT / 4)


def test_metrics_take_them():
    told, metrics = Told(), RunMetrics(1, samples_per_epoch=20)
    for step in (4, 8):
        metrics.count(0, 1, 10, 10 * loss(told, step))
    assert json.loads(json.dumps(metrics.facts()))["_loss_sum"] == 30.0
    metrics.progress(20, 2, 0.1)
    assert metrics.loss == 1.5
