"""`accumulate`: gradients of several steps are added on the worker and make one, as that of one larger batch.

The sum is weighed by samples and divided by all of them, so it is the mean gradient over all samples of its steps,
whatever their sizes, and a step on it equals one on the whole batch. Parameters do not change in between.
"""

from typing import Any

import numpy as np

from psgd.kernels import accumulate as kernels
from psgd.kernels.array import array_module
from psgd.worker.interface import Vector, Worker


class GradientSum:
    """The mean gradient over the samples of some steps.

    Args:
        into: where it is made; the caller's. With one step it is the gradient itself, and nothing is added.
        steps: that make one.
        divide: divide by the samples, so that the mean is rounded as the gradient of the whole batch; else multiply by
            1 / samples, which differs in the last bit unless they are a power of two.
    """

    def __init__(self, into: Vector, steps: int, divide: bool = True) -> None:
        self._into, self._steps, self._divide = into, steps, divide
        self._added = self._samples = 0
        none = into[:0]
        kernels.weigh(none, none, 1.0)
        kernels.add_weighted(none, none, 1.0)

    @property
    def empty(self) -> bool:
        """Whether no step has been added since the last was taken."""
        return self._added == 0

    def add(self, grads: Vector, samples: int) -> bool:
        """Adds a step's mean gradient over `samples`; with 0 it is not read. Returns whether the sum is complete."""
        if samples and self._steps > 1:
            add = kernels.add_weighted if self._samples else kernels.weigh
            add(self._into, grads, float(samples))
        self._samples += samples
        self._added += 1
        return self._added == self._steps

    def take(self) -> tuple[Vector, int]:
        """The mean gradient of what was added, and the samples behind it, or zeros and 0; the next sum begins."""
        samples, self._added, self._samples = self._samples, 0, 0
        if not samples:
            self._into.fill(0)
        elif self._steps > 1:
            arrays, kind = array_module(self._into), self._into.dtype.type
            if self._divide:
                arrays.divide(self._into, kind(samples), out=self._into)
            else:
                arrays.multiply(self._into, kind(1 / samples), out=self._into)
        return self._into, samples


class AccumulatingWorker:
    """Stands in front of a worker, and takes a step of it once so many gradients have been added up.

    It stands in front of any worker: with servers a step is a push, so clocks count pushes; where workers average
    parameters it is a local step. A checkpoint can only lie after a step of the other one, where nothing is half added.

    Args:
        worker: on which nobody else takes steps.
        steps: that make one of its.
        survival: `psgd.server.surviving.hand_over.HandOver`, where the run goes on without workers that die.

    Attributes:
        grads: on the device of the other's; keeps its values from step to step.
    """

    def __init__(self, worker: Worker, steps: int, survival: Any = None) -> None:
        self._worker, self._steps = worker, steps
        self.grads: Vector = np.empty(0)
        self._loss_sum = 0.0
        GradientSum(worker.params, steps)  # compiles now: with `start` the run's seconds begin
        if survival is not None:
            survival.rest = self.rest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def start(self) -> None:
        self._worker.start()
        self.grads = array_module(self._worker.grads).zeros_like(self._worker.grads)
        self._sum = GradientSum(self._worker.grads, self._steps)

    def overlap(self, samples: int) -> None:
        """None: what the other worker would send is final with the last gradient's addition only."""

    def step(self, samples: int, loss: float) -> None:
        self._worker.checkpoint.reached = False
        if samples:
            self._loss_sum += samples * loss
        if self._sum.add(self.grads, samples):
            self._take_step()

    def _take_step(self) -> None:
        _, samples = self._sum.take()
        loss, self._loss_sum = self._loss_sum / samples if samples else 0.0, 0.0
        self._worker.step(samples, loss)

    def rest(self) -> bool:
        """Applies the gradients that are left, where the worker's data ended in the middle: whether there were any."""
        if self._sum.empty:
            return False
        self._take_step()
        if self._worker.checkpoint.reached:
            self._worker.checkpoint.on_reached()
        return True

    def finish(self) -> None:
        """Applies the gradients that are left first."""
        self.rest()
        self._worker.finish()
