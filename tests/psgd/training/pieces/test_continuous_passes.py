"""Steps of a run by a pipeline that plays what it calls: batches, draws, faults and steps in their order."""

import numpy as np

from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.runtime.faults import Injector
from psgd.training.pieces.continuous_passes import ContinuousPasses, NumberedStep


class Played(PipeDream):
    """Two steps are under way at once."""

    def __init__(self, log):
        self._log = log

    def close(self):
        pass

    def steps(self, params, grads, samples, batches, take, draws=None):
        self._log.append((params, grads, samples))
        for step in (0, 1):
            self._log.append((batches(step), draws(step)))
        for step in (0, 1):
            take(2, 0.5 + step)
        return 1.0


class Passes(ContinuousPasses):
    waits = 0

    def _batch(self, indices, touch):
        raise NotImplementedError

    def _ordered(self, start, stop):
        raise NotImplementedError

    def _lasting(self, turn, rows, touch):
        x = np.zeros(len(rows))
        touch(x)
        return turn, x.tolist()

    def wait(self):
        self.waits += 1


def trained(inject):
    log, taken = [], []
    passes = Passes(Played(log), 0, 1)
    passes._vectors = "params", "grads"
    steps = [NumberedStep(key, number, np.arange(2)) for key, number in ((70, 4), (71, 5))]
    passes.train(steps, lambda step, loss: taken.append((step.number, loss)), Injector(inject, 0, 1))
    return passes, log, taken


def test_batches_last_and_steps_are_taken_in_order():
    passes, log, taken = trained("")
    assert log[0] == ("params", "grads", 4)
    assert [batch for batch, _ in log[1:]] == [(0, [0, 0]), (1, [0, 0])]
    assert [key for _, (key, _) in log[1:]] == [70, 71]
    assert taken == [(4, 0.5), (5, 1.5)] and not passes.waits


def test_who_is_slow_waits_first_and_samples_become_nan():
    passes, log, _ = trained("nan:0@6,compute:0.001")
    assert passes.waits == 2
    assert [np.isnan(x).all() for (_, x), _ in log[1:]] == [False, True]
