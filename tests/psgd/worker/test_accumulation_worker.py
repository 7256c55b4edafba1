"""Gradients of several steps make that of one larger batch."""

from types import SimpleNamespace

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError
from psgd.worker.accumulation import AccumulatingWorker, GradientSum
from psgd.worker.checkpoint_status import CheckpointStatus

SAMPLES = [3, 0, 5, 2]


def gradient(k):
    return np.sin(np.arange(7.0) + k)


def test_the_mean_is_over_all_samples():
    into = np.full(7, np.nan)
    total = GradientSum(into, 4)
    assert total.empty
    for k, samples in enumerate(SAMPLES):
        assert total.add(gradient(k) if samples else np.full(7, np.nan), samples) == (k == 3)
    got, samples = total.take()
    assert got is into and samples == 10 and total.empty
    np.testing.assert_allclose(got, sum(s * gradient(k) for k, s in enumerate(SAMPLES) if s) / 10, rtol=1e-15)


def test_of_no_samples_it_is_zero_and_of_one_step_the_gradient_itself():
    into = np.ones(7)
    total = GradientSum(into, 2)
    total.add(into, 0)
    assert total.take()[1] == 0 and not into.any()
    one = GradientSum(into, 1)
    into[:] = gradient(1)
    assert one.add(into, 3)
    np.testing.assert_array_equal(one.take()[0], gradient(1))


def test_the_mean_may_be_multiplied_instead():
    a, b = np.zeros(7), np.zeros(7)
    for into, divide in ((a, True), (b, False)):
        total = GradientSum(into, 2, divide)
        total.add(gradient(0), 1)
        total.add(gradient(1), 2)
        total.take()
    wanted = gradient(0) + 2 * gradient(1)
    np.testing.assert_array_equal(a, wanted / 3)
    np.testing.assert_array_equal(b, wanted * (1 / 3))


class Inner:
    def __init__(self):
        self.params, self.grads, self.taken = np.zeros(7), np.zeros(7), []
        self.checkpoint, self.started, self.finished = CheckpointStatus(), False, False

    def start(self):
        self.started = True

    def step(self, samples, loss):
        self.taken.append((samples, loss, self.grads.copy()))

    def finish(self):
        self.finished = True


def test_a_worker_steps_once_so_many_gradients_have_come_and_what_is_left_counts():
    inner = Inner()
    worker = AccumulatingWorker(inner, 2)
    worker.start()
    assert inner.started and worker.params is inner.params and worker.overlap(3) is None
    for k, (samples, loss) in enumerate(((1, 1.0), (3, 2.0), (2, 4.0))):
        worker.grads[:] = gradient(k)
        worker.step(samples, loss)
        assert len(inner.taken) == (k > 0)
    worker.finish()
    assert inner.finished and len(inner.taken) == 2
    (s0, l0, g0), (s1, l1, g1) = inner.taken
    assert (s0, l0, s1, l1) == (4, 7.0 / 4, 2, 4.0)
    np.testing.assert_allclose(g0, (gradient(0) + 3 * gradient(1)) / 4, rtol=1e-15)
    np.testing.assert_allclose(g1, gradient(2), rtol=1e-15)


def test_a_worker_that_may_have_more_to_do_applies_what_is_left_before_it_asks():
    inner, survival = Inner(), SimpleNamespace()
    worker = AccumulatingWorker(inner, 3, survival)
    worker.start()
    assert not survival.rest() and not inner.taken
    worker.grads[:] = gradient(0)
    worker.step(5, 1.0)
    assert survival.rest() and inner.taken[0][:2] == (5, 1.0)
    assert not survival.rest() and len(inner.taken) == 1
    worker.finish()
    assert len(inner.taken) == 1


@pytest.mark.ranks(1)
@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
def test_the_option_is_checked(comm, wrong):
    with pytest.raises(UsageError, match="accumulate: expected"):
        psgd.connect(comm, np.zeros(3), accumulate=wrong)
