"""Normalized batches in buffers that are used again and again."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.data.dataset import Split
from psgd.data.normalization import Statistics
from psgd.kernels.errors import UsageError
from psgd.kernels.gather import gather, normalize

Batch = tuple[NDArray[np.floating], NDArray[np.int64]]


class Batches:
    """Gathers and normalizes samples of one split; allocates nothing after the constructor.

    What `fetch` and `ordered` return are views of two buffers owned here, valid until the next call of
    either. Only the rows asked for are read, so a mapped file costs the pages of those rows.

    Args:
        split: the samples; kept, not copied.
        statistics: of the training set, whatever `split` is.
        batch_size: most samples of a batch.
        dtype: float32 or float64, of the batches.
        empty: makes the two buffers, as NumPy's function of that name.
    """

    def __init__(
        self,
        split: Split,
        statistics: Statistics,
        batch_size: int,
        dtype: DTypeLike = np.float32,
        empty: Callable[..., NDArray[Any]] = np.empty,
    ) -> None:
        if batch_size < 1 or np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise UsageError(
                f"Batches: expected batch_size of 1 or more and dtype float32 or float64, "
                f"got batch_size={batch_size}, dtype={dtype}"
            )
        self.samples = split.samples
        self.batch_size = batch_size
        # float32 holds a byte exactly and a mean of bytes to 1e-5; other samples are computed in float64
        narrow = split.x.dtype == np.uint8 and np.dtype(dtype) == np.float32
        self._statistics = np.array([statistics.mean, statistics.scale], np.float32 if narrow else np.float64)
        # plain arrays: Numba recognizes them faster than memory maps
        self._source = split.x.view(np.ndarray).reshape(split.samples, -1)
        self._labels = split.y.view(np.ndarray)
        self._x = empty((batch_size, *split.x.shape[1:]), dtype)
        self._flat = self._x.reshape(batch_size, -1)
        self._y = empty((batch_size, *split.y.shape[1:]), np.int64)
        # of text the kernel takes the first label of each sample to a place of its own; then all are taken
        self._tokens = split.y.ndim > 1
        self._first = (self._labels[:, 0], np.empty(batch_size, np.int64)) if self._tokens else (self._labels, self._y)

    def fetch(self, indices: NDArray[np.int64]) -> Batch:
        """Gathers the samples `indices`, any number up to batch_size, in that order.

        Returns:
            x of shape (len(indices), *sample_shape), C-contiguous, and y of shape (len(indices),), int64; of
            text (len(indices), tokens).

        Raises:
            UsageError: more than batch_size indices, or not a 1-D int64 array.
            IndexError: an index out of range.
        """
        if indices.dtype != np.int64 or indices.ndim != 1 or len(indices) > self.batch_size:
            raise UsageError(
                f"Batches.fetch: expected a 1-D int64 array of at most {self.batch_size} indices, "
                f"got {indices.dtype} of shape {indices.shape}"
            )
        labels, y = self._first
        bad, _ = gather(self._source, labels, indices, self._statistics, self._flat, y)
        if bad >= 0:
            raise IndexError(f"Batches.fetch: index {indices[bad]} out of range for {self.samples} samples")
        if self._tokens:
            self._y[: len(indices)] = self._labels[indices]
        return self._x[: len(indices)], self._y[: len(indices)]

    def ordered(self, start: int, stop: int) -> Batch:
        """Normalizes the samples start to stop - 1, as for evaluation; returns what `fetch` does.

        Raises:
            IndexError: not 0 <= start <= stop <= samples.
            UsageError: more than batch_size samples.
        """
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"Batches.ordered: {start} to {stop} is not a range of {self.samples} samples")
        count = stop - start
        if count > self.batch_size:
            raise UsageError(f"Batches.ordered: {count} samples asked for, batch_size is {self.batch_size}")
        normalize(self._source[start:stop].reshape(-1), self._statistics, self._flat[:count].reshape(-1))
        np.copyto(self._y[:count], self._labels[start:stop], casting="same_kind")
        return self._x[:count], self._y[:count]
