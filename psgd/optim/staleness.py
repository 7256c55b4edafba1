"""Staleness-scaled steps: what a contribution of staleness tau is multiplied by.

tau is the version it is applied to minus the version it was computed on. `inverse` is 1 / max(1, tau) (Zhang, Gupta,
Lian and Liu 2015). `exponential` is exp(-tau / 10), which shrinks steps more than it should with many workers.
"""

import math
from collections.abc import Callable

from psgd.kernels.errors import UsageError

NAMES = ("none", "inverse", "exponential")


def create(name: str) -> Callable[[int], float] | None:
    """The factor of that name as a function of tau; None for `none`.

    Raises:
        UsageError: no such factor.
    """
    if name == "none":
        return None
    if name == "inverse":
        return lambda tau: 1.0 / max(1, tau)
    if name == "exponential":
        return lambda tau: math.exp(-tau / 10)
    raise UsageError(f"staleness_lr: expected one of {', '.join(NAMES)}, got {name!r}")
