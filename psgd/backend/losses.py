"""Losses that a GPU computes without a wait: numbers that are read when their value is needed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from psgd.kernels.array import Array

KEPT = 1 << 16
_EVENTS = 64


class Losses:
    """The mean losses of the newest `KEPT` steps, in page-locked memory that the GPU writes to.

    Attributes:
        steps: (1,) int64 on the GPU, steps that it has taken.
        count: steps that were started.
    """

    def __init__(self) -> None:
        import cupy

        from psgd.backend import pinned

        self._host = pinned.empty((KEPT,), np.float64)
        self._device = pinned.seen_by_device(self._host)
        self.steps = cupy.zeros(1, np.int64)
        self.count = 0
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(_EVENTS)]

    def start(self, logits: Array, labels: Array, scale: float) -> tuple[float, int]:
        """In place of `psgd.kernels.layers.loss.softmax_cross_entropy`: waits for nothing, and gives nothing yet."""
        from psgd.kernels.device.layers import loss as kernels

        kernels.start(logits, labels, scale, self._device, self.steps)
        return 0.0, 0

    def put(self, loss: Array) -> None:
        """In place of `start`, for a loss that another library has computed.

        Args:
            loss: (1,) float64 on the GPU, to be left alone until the current stream has come here.
        """
        from psgd.backend import pinned

        slot = self.count % KEPT
        pinned.download(self._host[slot : slot + 1], loss)
        self.steps += 1

    def newest(self) -> "Loss":
        """The mean loss of the step that was just put on the current stream."""
        self._events[self.count % _EVENTS].record()
        self.count += 1
        return Loss(self, [(self.count - 1, 1.0)])

    def read(self, parts: Sequence[tuple[int, float]]) -> float:
        """The sum of weight times loss over steps. Waits for these steps, and for nothing that was started later."""
        if parts:
            newest = max(step for step, _ in parts)
            self._events[max(newest, self.count - _EVENTS) % _EVENTS].synchronize()
        return float(sum(weight * self._host[step % KEPT] for step, weight in parts))


class Loss:
    """A sum of losses with weights, as a number: `float()` reads it."""

    __array_ufunc__ = None  # NumPy's numbers leave the arithmetic to this class

    def __init__(self, losses: Losses, parts: list[tuple[int, float]], more: float = 0.0) -> None:
        self._losses, self._parts, self._more = losses, parts, more

    def __float__(self) -> float:
        if self._parts:
            self._more += self._losses.read(self._parts)
            self._parts = []
        return float(self._more)

    def __mul__(self, weight: float) -> "Loss":
        return Loss(self._losses, [(step, weight * w) for step, w in self._parts], weight * self._more)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> "Loss":
        sum_ = Loss(self._losses, list(self._parts), self._more)
        sum_ += other
        return sum_

    __radd__ = __add__

    def __iadd__(self, other: Any) -> "Loss":
        if isinstance(other, Loss):
            self._parts += other._parts
            self._more += other._more
        else:
            self._more += other
        if len(self._parts) >= KEPT // 4:  # before newer losses take their place
            float(self)
        return self

    def __sub__(self, other: Any) -> "Loss":
        return self.__add__(-1.0 * other)

    def __truediv__(self, other: float) -> float:
        return float(self) / other
