"""A single rank's worker: the servers' step, and checkpoints that it counts itself."""

import numpy as np
import pytest

from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.server.shard import Shard
from psgd.worker.local import LocalWorker

N = 9


def worker_of(rule=None):
    rule = rule or rules.momentum(0.5)
    shard = Shard(np.ones(N), OptimizerOptions(rule, schedules.constant(0.5)), segment=4)
    worker = LocalWorker(shard, np.zeros(N), RunMetrics(1))
    worker.checkpoint.every = 3
    worker.start()
    return worker


def steps(worker, count, first=0):
    """Takes steps; the numbers of those that ended at a checkpoint."""
    found = []
    for step in range(first, first + count):
        worker.grads[:] = np.arange(N) + step
        worker.step(2, 1.0)
        if worker.checkpoint.reached:
            found.append(worker.checkpoint.step)
    return found


def test_a_step_is_the_rule_on_the_gradient_as_it_is():
    worker, expected, velocity = worker_of(), np.ones(N), np.zeros(N)
    steps(worker, 3)
    for step in range(3):
        velocity = 0.5 * velocity + (np.arange(N) + step)
        expected = expected - 0.5 * velocity
    np.testing.assert_array_equal(worker.params, expected)
    assert worker.version == 3


def test_a_step_of_no_samples_moves_nothing():
    worker = worker_of()
    worker.step(0, 1.0)
    np.testing.assert_array_equal(worker.params, 1.0)
    assert worker.version == 0


@pytest.mark.parametrize("level", [SAVE, SAVE_AND_STOP])
def test_checkpoints_by_number_and_on_request(level):
    worker = worker_of()
    assert steps(worker, 7) == [3, 6]
    worker.checkpoint.ask(level == SAVE_AND_STOP)
    assert steps(worker, 1, 7) == [8]
    assert worker.stop == worker.checkpoint.stopping == (level == SAVE_AND_STOP)


def test_a_resumed_worker_ends_with_the_same_bits():
    whole, early, late = worker_of(), worker_of(), worker_of()
    steps(whole, 8)
    steps(early, 5)
    assert late.restore(early.state(), []) == []
    late.start()
    assert steps(late, 3, 5) == [6]
    np.testing.assert_array_equal(late.params, whole.params)
    assert late.state().facts["log"] == whole.state().facts["log"]
