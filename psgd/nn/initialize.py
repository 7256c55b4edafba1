"""First parameters: zeros, ones, and uniform weights by Xavier's and He's rules or of a given deviation."""

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
class Ones:
    """All 1, as the factors of a normalization begin. Draws nothing."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns ones."""
        return np.ones(shape)


@dataclass(frozen=True)
class Spread:
    """Uniform about 0 with a standard deviation that is given, as embeddings begin.

    Attributes:
        deviation: of the values.
    """

    deviation: float

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns values on [-a, a), whose variance is a^2 / 3."""
        a = math.sqrt(3) * self.deviation
        return rng.random(shape) * (2 * a) - a


@dataclass(frozen=True)
class Uniform:
    """Weights uniform on [-a, a), with the variance, a^2 / 3, that follows from the layer's width.

    xavier: 2 / (fan_in + fan_out) (Glorot and Bengio 2010, eq. 16).
    he: 2 / fan_in (He et al. 2015, eq. 10), for layers that a ReLU follows.

    Attributes:
        fan_in: inputs that one output is a sum over.
        fan_out: outputs that one input takes part in.
        init: None is chosen by place when layers are put together: he when a ReLU follows, xavier otherwise.
    """

    fan_in: int
    fan_out: int
    init: Init | None = None

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns weights. Uniform, not normal: that needs no logarithm, whose last bit differs between machines."""
        if self.init not in (None, "xavier", "he"):
            raise UsageError(f"init: expected xavier or he, got {self.init!r}")
        a = math.sqrt(6 / (self.fan_in if self.init == "he" else self.fan_in + self.fan_out))
        return rng.random(shape) * (2 * a) - a
