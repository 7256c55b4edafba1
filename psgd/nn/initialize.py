"""First weights: Xavier and He, both uniform."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from psgd.kernels.errors import UsageError

Init = Literal["xavier", "he"]


def bound(init: Init, fan_in: int, fan_out: int) -> float:
    """Returns a of the uniform distribution on [-a, a), whose variance is a^2 / 3.

    xavier: variance 2 / (fan_in + fan_out) (Glorot and Bengio 2010, eq. 16).
    he: variance 2 / fan_in (He et al. 2015, eq. 10), for layers that a ReLU follows.
    """
    if init == "xavier":
        return math.sqrt(6 / (fan_in + fan_out))
    if init == "he":
        return math.sqrt(6 / fan_in)
    raise UsageError(f"init: expected xavier or he, got {init!r}")


def uniform(rng: np.random.Generator, a: float, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Draws weights in float64.

    Uniform, not normal: it needs no logarithm, whose last bit differs between machines.
    """
    return rng.random(shape) * (2 * a) - a
