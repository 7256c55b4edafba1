"""Losses that a GPU computes: they reach the host behind it, and nobody waits for each of them."""

from typing import Any

import numpy as np
import torch

from psgd.kernels.array import Array
from psgd.torch.same_memory import array_of


class LossesThere:
    """The losses of a batch's microbatches in the order of their passes, in page-locked memory.

    Args:
        gpu: `psgd.parallel.stages.gpu.Gpu`.
        most: microbatches of a batch.
    """

    def __init__(self, gpu: Any, most: int) -> None:
        self._gpu, self._host = gpu, gpu.staging((most,), np.float64)
        self._event, _ = gpu.event()
        self._count = 0

    def begin(self) -> None:
        """A batch begins."""
        self._count = 0

    def take(self, loss: torch.Tensor) -> "LossThere":
        """Has the GPU copy a loss behind what it is doing; does not wait.

        Args:
            loss: of one element, without a gradient.
        """
        return self.copy(array_of(loss.reshape(1).double()))

    def copy(self, loss: Array) -> "LossThere":
        """As `take`, of an array (1,) of float64 on the GPU."""
        place, self._count = self._count, self._count + 1
        self._gpu.copy(self._host[place : place + 1], loss)
        self._gpu.record(self._event)
        return LossThere(self._host, place)

    def done(self) -> bool:
        """Whether all that were taken since `begin` are here. Does not block."""
        return not self._count or bool(self._gpu.passed(self._event))


class LossThere:
    """A loss that is a number once `LossesThere.done` is true."""

    def __init__(self, host: Any, place: int) -> None:
        self._host, self._place = host, place

    def __float__(self) -> float:
        return float(self._host[self._place])
