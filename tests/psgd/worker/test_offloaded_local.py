"""A single rank whose steps threads take: those of `LocalWorker`, checkpoints too, and what it refuses."""

import numpy as np
import pytest

from psgd.checkpoint.state import State
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import step as stepwise
from psgd.worker import starter
from psgd.worker.accumulation import AccumulatingWorker

N = 40


def made(updates=None, clip=0.0, rule=None):
    options = OptimizerOptions(rule or rules.adam(), stepwise(0.1, 8, 0.5), clip)
    worker = starter.create_local(np.linspace(-1, 1, N), options, 16, RunMetrics(1), updates)
    return worker


def fill(worker, number):
    worker.grads[:] = np.random.default_rng(number).normal(size=N)


def steps(worker, parts=(range(30, N), range(7, 30), range(7)), start=0):
    """Steps of 4 samples; where it takes parts, all but the last one are told of."""
    for number in range(start, start + 5):
        fill(worker, number)
        ready = worker.overlap(4)
        for part in parts[:-1] if ready is not None else ():
            ready(part)
        worker.step(4, 0.5)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_steps_and_what_is_saved_are_a_single_ranks(clip):
    updates = HostUpdates(2)
    one, other = made(clip=clip), made(updates, clip)
    for worker in (one, other):
        worker.checkpoint.every = 5
        worker.start()
        steps(worker)
        assert worker.checkpoint.reached and worker.version == 5
    np.testing.assert_array_equal(one.params, other.params)
    assert updates.settled
    saved, expected = other.state(), one.state()
    assert saved.facts == expected.facts
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(saved.tensors[name], tensor)
    copied = State({name: each.copy() for name, each in saved.tensors.items()}, saved.facts)
    again = made(HostUpdates(1), clip)
    assert again.restore(copied, [copied]) == []
    again.start()
    for worker in (one, again):
        steps(worker, start=5)
        worker.finish()
    np.testing.assert_array_equal(one.params, again.params)


def test_steps_without_samples_and_sums_of_steps():
    one, other = made(), made(HostUpdates(2))
    for worker in (one, other):
        worker.start()
        worker.step(0, 0.0)
        fill(worker, 1)
        worker.step(3, 0.5)
        worker.step(0, 0.0)
        front = AccumulatingWorker(worker, 2)
        front.start()
        for number in range(4):
            front.grads[:] = number
            front.step(2, 0.5)
        front.finish()
        assert worker.version == 3
    np.testing.assert_array_equal(one.params, other.params)


def test_who_follows_is_not_waited_for():
    updates = HostUpdates(1)
    updates.followed = True
    worker = made(updates)
    worker.start()
    waits = []
    wait, updates.wait = updates.wait, lambda part=None: (waits.append(part), wait(part))[1]
    fill(worker, 0)
    worker.step(4, 0.5)
    assert None not in waits
    worker.finish()
    assert None in waits


def test_what_does_not_go_together():
    worker = made(HostUpdates(1))
    worker.start()
    assert worker.overlap(0) is None
    ready = worker.overlap(4)
    ready(range(0))
    with pytest.raises(UsageError, match=r"expected a range that ends at 40"):
        ready(range(3, 7))
    with pytest.raises(UsageError, match="already being used"):
        worker.overlap(4)
    with pytest.raises(UsageError, match=r"expected the 4 samples that were passed to overlap\(\), got 5"):
        worker.step(5, 0.5)
