"""Learning-rate schedules: pure functions of global progress.

A schedule takes the samples applied so far, of all workers together, and gives the learning rate for the next step.
It never counts a worker's own steps, so that it runs at the same speed whatever the number of workers and the strategy.
"""

import math
from collections.abc import Callable

from psgd.kernels.errors import UsageError
from psgd.runtime.option import above_zero, from_zero, whole

Schedule = Callable[[float], float]

NAMES = ("constant", "step", "cosine")

_ABOVE_ZERO, _FROM_ZERO = above_zero(None, ""), from_zero(None, "")


class Constant:
    """A schedule of one learning rate, which need not be asked at each step."""

    def __init__(self, lr: float) -> None:
        self._lr = lr

    def __call__(self, samples: float) -> float:
        return self._lr


def constant(lr: float) -> Schedule:
    """Always `lr`."""
    return Constant(_ABOVE_ZERO.check("constant: lr", lr))


def step(lr: float, every: float, factor: float = 0.1) -> Schedule:
    """`lr` times `factor` once for every `every` samples of progress."""
    for name, value in (("lr", lr), ("every", every), ("factor", factor)):
        _ABOVE_ZERO.check(f"step: {name}", value)

    def rate(samples: float) -> float:
        try:
            return lr * factor ** math.floor(samples / every)
        except OverflowError:  # so many steps, or such large ones, that no float holds the result
            return 0.0 if factor < 1 else math.inf if factor > 1 else lr

    return rate


def cosine(lr: float, total: float, floor: float = 0.0) -> Schedule:
    """Half a cosine from `lr` at 0 to `floor` at `total` samples and after (Loshchilov and Hutter 2017)."""
    for name, value in (("lr", lr), ("total", total)):
        _ABOVE_ZERO.check(f"cosine: {name}", value)
    _FROM_ZERO.check("cosine: floor", floor)
    return lambda samples: floor + (lr - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, samples / total)))


def warmup(schedule: Schedule, samples: float) -> Schedule:
    """Multiplies `schedule` by a ramp from 0 to 1 over the first `samples` (Goyal et al. 2017)."""
    if not callable(schedule):
        raise UsageError(f"warmup: schedule: expected a function of the samples applied, got {schedule!r}")
    if _FROM_ZERO.check("warmup: samples", samples) == 0:
        return schedule
    return lambda progress: schedule(progress) * min(1.0, progress / samples)


def linear_scaling(lr: float, workers: int) -> float:
    """The linear scaling rule: `workers` times the learning rate for `workers` times the batch (Goyal et al. 2017)."""
    whole(1, None, "").check("linear_scaling: workers", workers)
    return float(_ABOVE_ZERO.check("linear_scaling: lr", lr)) * workers
