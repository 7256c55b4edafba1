"""The optimizer's step: the learning rate by global progress, clipping over the whole gradient, the update rule.

`OptimizerOptions` is what a run asks for. `Optimizer` takes the steps of a vector, or of one server's part of it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.kernels import exact_squares
from psgd.kernels.exact_squares import Limbs
from psgd.optim.rules import Rule
from psgd.optim.schedules import Constant, Schedule

if TYPE_CHECKING:
    from psgd.optim.squares import Squares

Vector = NDArray[np.floating]


@dataclass(frozen=True)
class OptimizerOptions:
    """What a run's optimizer does at each step, the same on all ranks.

    Attributes:
        rule: the update rule.
        schedule: the learning rate by samples applied, of all workers together.
        clip_norm: largest norm of a step's mean gradient; 0 is off.
        reduction_factor: what a mean gradient is multiplied by: 1, or the number of workers with `reduction="sum"`.
        squares: sums squares over the whole model, where the vector is a part of it; None: the vector is all. The sum
            is exact before it is rounded once: no cut changes the norm's bits.
    """

    rule: Rule
    schedule: Schedule
    clip_norm: float = 0.0
    reduction_factor: float = 1.0
    squares: "Squares | None" = None

    def create(self, params: Vector) -> "Optimizer":
        """An optimizer of a vector that lies on this rank as a whole."""
        return Optimizer(params, self)

    def sum_of_squares(self, grad: Vector) -> float:
        """Of a gradient that lies on this rank as a whole; of a model in parts over all of them. Then collective."""
        return self.total(self.digits(grad, 0))

    def digits(self, grad: Vector, start: int) -> Limbs:
        """The digits (`psgd.kernels.exact_squares`) of the sum of squares of a part of this rank's vector.

        Args:
            grad: of the vector's elements from `start` on.
            start: of the first one.
        """
        return exact_squares.squares(grad) if self.squares is None else self.squares.local(grad, start)

    def total(self, limbs: Limbs) -> float:
        """The sum of squares of the whole gradient from the digits of this rank's vector; collective as above."""
        return exact_squares.rounded(limbs) if self.squares is None else self.squares.total(limbs)


class Optimizer:
    """Parameters, optimizer state and the number of steps taken.

    A step on the whole vector is `take`. A step by segments is `clipped` (where `clips`), once `begin`, and for each
    segment `update(params, gradient, state, lr, scale, version)`, with segments of `params` and `state`.

    Args:
        params: 1-D, updated in place; the caller's.
        options: what to do.
        sum_over_shards: adds an array of float64, element by element, over all ranks that have a part of the vector;
            used for the norm's digits. Collective.
        start: where `params` begin in that vector.

    Attributes:
        state: the rule's arrays.
        arrays: the same by name, to be saved.
        version: steps taken.
        lr: learning rate of the newest step.
        clips: whether long gradients are shortened.
        update: the rule's.
    """

    def __init__(
        self,
        params: Vector,
        options: OptimizerOptions,
        sum_over_shards: Callable[[Limbs], Limbs] = lambda alone: alone,
        start: int = 0,
    ) -> None:
        self.params, self.options, self._start = params, options, start
        self.version = 0
        self.lr = options.schedule(0)
        self.state = options.rule.init(params)
        self.arrays = {f"state{k}": array for k, array in enumerate(self.state)}
        self.clips = options.clip_norm > 0
        self.update = options.rule.update
        self._schedule, self._sum_over_shards = options.schedule, sum_over_shards
        self._varies = not isinstance(options.schedule, Constant)
        none = self.params[:0]  # compiles now, so that no step waits for it
        self.update(none, none, tuple(s[:0] for s in self.state), 0.0, 1.0, 1)
        if self.clips:
            exact_squares.squares(none)

    def begin(self, position: float) -> None:
        """A step begins.

        Args:
            position: samples applied before, for the learning rate.
        """
        if self._varies:
            self.lr = self._schedule(position)
        self.version += 1

    def clipped(self, grad: Vector, scale: float) -> float:
        """`scale`, or less where the gradient `scale * grad` over all shards is longer than the largest norm."""
        return self.shortened(self._sum_over_shards(self.digits(grad)), scale)

    def digits(self, grad: Vector) -> Limbs:
        """The digits of this shard's part in the sum of squares (`psgd.kernels.exact_squares`)."""
        return self.options.digits(grad, self._start)

    def shortened(self, limbs: Limbs, scale: float) -> float:
        """As `clipped`, from the digits of all shards."""
        return clipped(scale, self.options.total(limbs), self.options.clip_norm)

    def take(self, grad: Vector, scale: float, position: float) -> None:
        """Takes a step with the gradient `scale * grad`, shrunk to the largest norm where it is longer.

        Args:
            grad: not changed.
            scale: more than 0.
            position: samples applied before, for the learning rate.
        """
        if self.clips:
            scale = self.clipped(grad, scale)
        self.begin(position)
        self.update(self.params, grad, self.state, self.lr, scale, self.version)

    def kept(self, alike: bool = False) -> list[Item]:
        """Declares for a checkpoint what steps depend on beside the parameters.

        Args:
            alike: all workers have the same. Else another number of workers begins with the mean.
        """
        mean = "the optimizer's state: each worker starts from the mean"
        return [
            Arrays(self.arrays, Combine.ALIKE if alike else Combine.MEAN, found=mean),
            Fact("steps", self, "version", also="version", default=0),
            *self.skips(),
        ]

    def skips(self) -> list[Item]:
        """Declares the steps that the rule has left out, where it can."""
        settings = self.options.rule.settings
        return [] if settings is None else [Fact("skipped", settings, default=0)]


def clipped(scale: float, sum_of_squares: float, largest: float) -> float:
    """`scale`, or less where a gradient times `scale` has a norm above `largest`.

    Args:
        scale: more than 0.
        sum_of_squares: of the gradient's elements.
        largest: norm that the gradient may have; more than 0.
    """
    norm = scale * math.sqrt(sum_of_squares)
    return scale * largest / norm if norm > largest else scale
