"""A worker's batches, from where it stands to the end: its share of each epoch, and what it takes over from the dead.

All takers make the same number of steps for what they take over, some on empty batches, so that those that keep pace
stay in step.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.data.sampler import Sampler
from psgd.training.survival.ledger import HEAD


class CourseStep(NamedTuple):
    """One step's.

    Attributes:
        epoch, step: its place; what was taken over has steps behind those of the epoch.
        number: of this worker's step, from 0.
        samples: their indices.
        planned: it is of the worker's own share.
    """

    epoch: int
    step: int
    number: int
    samples: NDArray[np.int64]
    planned: bool = True


class Course:
    """Iterates over the batches.

    Args:
        sampler: of this worker's share at first.
        epochs: of the run.

    Attributes:
        steps: of the present epoch.
        shrunk: some that trained have died.
        leads: this worker is the first of those that train.
        evaluates: this worker does, and does not keep others waiting by being slow.
        again: computes the gradient of a batch again: of the newest, or of so many before it.
        rest: asked first at the end: whether gradients were left that are not applied, and are now.
        ends: asked then: whether the run is over; else there may be more by then.
    """

    def __init__(self, sampler: Sampler, epochs: int) -> None:
        self._samplers = [(0, sampler)]  # from which epoch on, ascending
        self._epochs = epochs
        self._taken: deque[NDArray[np.int64]] = deque()
        self.leads = sampler.worker == 0
        self.shrunk = False
        self.evaluates = False
        self.rest: Callable[[], bool] = _nothing
        self.ends: Callable[[], bool] = _at_once
        self.again: Callable[[int], object] = _not_yet
        self.steps = sampler.steps

    @property
    def sampler(self) -> Sampler:
        """Of this worker's share at first."""
        return self._samplers[0][1]

    def receive(self, words: NDArray[np.int64]) -> None:
        """What `psgd.training.survival.ledger` has sent: the samples to take over, and the share from some epoch on."""
        epoch, place, parts, steps = words[:HEAD].tolist()
        first = self._samplers[0][1]
        size = first.batch_size
        self._taken.extendleft(words[HEAD:][step * size : (step + 1) * size] for step in reversed(range(steps)))
        self._samplers = [each for each in self._samplers if each[0] < epoch or each[0] == 0]
        self._samplers.append((epoch, Sampler(first.samples, parts, place, size, first.seed)))
        self.leads, self.shrunk = place == 0, True

    def after(self, done: int) -> Iterator[CourseStep]:
        """The batches that follow so many steps of this worker's own share."""
        epoch, step = divmod(done, self._samplers[0][1].steps)
        number, more = done, 0
        while True:
            sampler = next(each for start, each in reversed(self._samplers) if start <= epoch)
            self.steps = sampler.steps
            if self._taken:
                more += 1
                yield CourseStep(epoch, sampler.steps + more, number, self._taken.popleft(), planned=False)
            elif epoch < self._epochs and step < sampler.steps:
                yield CourseStep(epoch, step, number, sampler.batch(epoch, step))
                step += 1
            elif epoch < self._epochs:
                epoch, step = epoch + 1, 0
                continue
            elif self.rest() or not self.ends():  # by now there may be more
                continue
            else:
                return
            number += 1


def _at_once() -> bool:
    return True


def _nothing() -> bool:
    return False


def _not_yet(before: int) -> None:
    raise AssertionError("no batch was given yet")
