"""Batches on a GPU: out of a dataset that lies there, or copied from page-locked memory beside the computation."""

from typing import Any, Protocol

import cupy
import numpy as np
from numpy.typing import NDArray

from psgd.backend import pinned
from psgd.data.batches import Batches
from psgd.data.dataset import Split
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.kernels.device.gather import gather

SHARE = 0.5
"""Of a GPU's free memory, what a dataset may take."""
_SLOTS = 256


def fits(split: Split) -> bool:
    """Whether a split is small enough for the current GPU."""
    free, _ = cupy.cuda.runtime.memGetInfo()
    return bool(split.x.nbytes <= SHARE * free)


class Source(Protocol):
    """Where batches come from. A step is `choose`, `write`, `used`; `write` alone is what a graph repeats."""

    def choose(self, indices: NDArray[np.int64]) -> int:
        """Says which samples the next batch is of, all in range. Returns what a graph captured now depends on."""

    def write(self, n: int, x: Array, y: Array) -> tuple[Array, Array]:
        """Starts making the batch of n samples; x and y are where it may go. Returns where it is."""

    def used(self) -> None:
        """The step that reads the batch has been started."""


class Resident:
    """A split that lies on the GPU as it is in the file; a batch is gathered and normalized by one kernel.

    The kernel reads the indices from page-locked memory, out of a ring of `_SLOTS`, by the number of steps that the
    GPU has taken. So a graph needs no argument, and the host may be half a ring ahead.

    Args:
        split: copied.
        statistics: of the training set.
        batch_size: most samples of a batch.
        steps: (1,) int64 on the GPU, incremented at the end of each step.
    """

    def __init__(self, split: Split, statistics: Statistics, batch_size: int, steps: Array = None) -> None:
        self.samples = split.samples
        self._x = cupy.asarray(np.ascontiguousarray(split.x).reshape(split.samples, -1))
        self._y = cupy.asarray(np.ascontiguousarray(split.y, np.int64))
        self._kind = np.dtype(np.float32 if split.x.dtype == np.uint8 else np.float64)
        self._statistics = np.array([statistics.mean, statistics.scale], self._kind)
        self._steps = steps
        self._ring = pinned.empty((_SLOTS, batch_size), np.int64)
        self._rows = pinned.seen_by_device(self._ring)
        self._count = 0
        self._left: list[Any] = [None, None]  # when the GPU was done with either half of the ring

    def choose(self, indices: NDArray[np.int64]) -> int:
        half = _SLOTS // 2
        if self._count % half == 0 and self._left[self._count // half % 2] is not None:
            self._left[self._count // half % 2].synchronize()
        self._ring[self._count % _SLOTS, : len(indices)] = indices
        return 0

    def write(self, n: int, x: Array, y: Array) -> tuple[Array, Array]:
        gather(self._x, self._y, self._rows, self._statistics, x[:n], y[:n], self._steps)
        return x[:n], y[:n]

    def used(self) -> None:
        self._count += 1
        half = _SLOTS // 2
        if self._count % half == 0:
            event = cupy.cuda.Event(disable_timing=True)
            event.record()
            self._left[(self._count // half - 1) % 2] = event

    def ordered(self, start: int, stop: int, x: Array, y: Array) -> tuple[Array, Array]:
        """The samples start to stop - 1, written to x and y."""
        n = stop - start
        gather(self._x, self._y, start, self._statistics, x[:n], y[:n])
        return x[:n], y[:n]


class Streamed:
    """A split that stays on the host: batches are gathered there and copied by the GPU while it still computes.

    Two of everything: while one batch is computed with, the next is gathered and copied, on a stream of its own.

    Args:
        split: kept, not copied.
        statistics: of the training set.
        batch_size: most samples of a batch.
    """

    def __init__(self, split: Split, statistics: Statistics, batch_size: int) -> None:
        self.samples = split.samples
        self._batches = [Batches(split, statistics, batch_size, empty=pinned.empty) for _ in range(2)]
        shape = batch_size, split.x[0].size
        self._device = [
            (cupy.empty(shape, np.float32), cupy.empty((batch_size, *split.y.shape[1:]), np.int64)) for _ in range(2)
        ]
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._copied: list[Any] = [None, None]
        self._free: list[Any] = [None, None]
        self._slot = 1

    def choose(self, indices: NDArray[np.int64]) -> int:
        self._slot = slot = 1 - self._slot
        if self._copied[slot] is not None:
            self._copied[slot].synchronize()  # the host's buffer
        n = len(indices)
        x, y = self._batches[slot].fetch(indices)
        with self._stream:
            if self._free[slot] is not None:
                self._stream.wait_event(self._free[slot])  # the GPU's
            pinned.upload(self._device[slot][0][:n], x)
            pinned.upload(self._device[slot][1][:n], y)
            self._copied[slot] = self._stream.record()
        cupy.cuda.get_current_stream().wait_event(self._copied[slot])
        return slot

    def write(self, n: int, x: Array, y: Array) -> tuple[Array, Array]:
        there, labels = self._device[self._slot]
        y[:n] = labels[:n]
        return there[:n], y[:n]

    def used(self) -> None:
        self._free[self._slot] = cupy.cuda.get_current_stream().record()

    def ordered(self, start: int, stop: int, x: Array, y: Array) -> tuple[Array, Array]:
        """The samples start to stop - 1."""
        self.choose(np.arange(start, stop))
        batch = self.write(stop - start, x, y)
        self.used()
        return batch
