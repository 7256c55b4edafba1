"""The optimizer's steps where the whole vector and its gradient lie on this rank."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.kernels import accumulate
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule

Vector = NDArray[np.floating]


@dataclass(frozen=True)
class OptimizerOptions:
    """What a run's optimizer does at each step, the same on all ranks.

    Attributes:
        rule: the update rule.
        schedule: the learning rate by samples applied, of all workers together.
        clip_norm: largest norm of a step's mean gradient; 0 is off.
        reduction_factor: what a mean gradient is multiplied by: 1, or the number of workers with `reduction="sum"`.
    """

    rule: Rule
    schedule: Schedule
    clip_norm: float = 0.0
    reduction_factor: float = 1.0

    def create(self, params: Vector) -> "Optimizer":
        """An optimizer of a vector that lies on this rank as a whole."""
        return Optimizer(params, self.rule, self.schedule, self.clip_norm)


class Optimizer:
    """Parameters, optimizer state and the number of steps taken.

    Args:
        params: 1-D, updated in place; the caller's.
        rule: the update rule.
        schedule: the learning rate by samples applied.
        clip_norm: largest norm of a step's gradient; 0 is off.

    Attributes:
        params: as given.
        state: the rule's arrays.
        arrays: the same by name, to be saved.
        version: steps taken.
        lr: rate of the newest step.
    """

    def __init__(self, params: Vector, rule: Rule, schedule: Schedule, clip_norm: float = 0.0) -> None:
        self.params = params
        self.version = 0
        self.lr = schedule(0)
        self.state = rule.init(params)
        self.arrays = {f"state{k}": array for k, array in enumerate(self.state)}
        self._update, self._schedule, self._clip = rule.update, schedule, clip_norm
        none = self.params[:0]  # compiles now, so that no step waits for it
        self._update(none, none, tuple(s[:0] for s in self.state), 0.0, 1.0, 1)
        accumulate.sum_of_squares(none)

    def take(self, grad: Vector, scale: float, position: float) -> None:
        """Takes a step with the gradient `scale * grad`, shrunk to the largest norm where it is longer.

        Args:
            grad: not changed.
            scale: more than 0.
            position: samples applied before, for the rate.
        """
        if self._clip:
            norm = scale * math.sqrt(accumulate.sum_of_squares(grad))
            scale = scale * self._clip / norm if norm > self._clip else scale
        self.lr = self._schedule(position)
        self.version += 1
        self._update(self.params, grad, self.state, self.lr, scale, self.version)

    def kept(self, alike: bool = False) -> list[Item]:
        """Declares for a checkpoint what steps depend on beside the parameters.

        Args:
            alike: all workers have the same. Else another number of workers begins with the mean.
        """
        mean = "the optimizer's state: each worker begins with the mean"
        return [
            Arrays(self.arrays, Combine.ALIKE if alike else Combine.MEAN, found=mean),
            Fact("steps", self, "version", also="version", default=0),
        ]
