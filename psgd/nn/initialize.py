"""First parameters: zeros, and uniform weights by Xavier's and He's rules."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from psgd.kernels.errors import UsageError

Init = Literal["xavier", "he"]


class Initializer(Protocol):
    """How a parameter's first values are drawn."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns first values of `shape`, in float64."""


@dataclass(frozen=True)
class Zeros:
    """All 0, as biases begin. Draws nothing."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns zeros."""
        return np.zeros(shape)


@dataclass(frozen=True)
class Uniform:
    """Uniform weights whose width follows from the layer's width.

    Attributes:
        fan_in: inputs that one output is a sum over.
        fan_out: outputs that one input takes part in.
        init: None is chosen by place when layers are put together: he when a ReLU follows, xavier otherwise.
    """

    fan_in: int
    fan_out: int
    init: Init | None = None

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns weights by `init`, or by xavier where nothing was chosen."""
        return uniform(rng, bound(self.init or "xavier", self.fan_in, self.fan_out), shape)


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
