"""Arrays that take no memory, and the bytes that they would take: what a model's buffers need, before there are any."""

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class CountingArrays:
    """In place of `numpy` where buffers are made. Its arrays have shape and dtype, but one element of memory.

    Args:
        device: that is asked for, "cpu" or "cuda": layers look at the name.

    Attributes:
        nbytes: of all arrays that were made.
    """

    ndarray = np.ndarray
    counts = True  # so that nobody makes memory elsewhere

    def __init__(self, device: str = "cpu") -> None:
        self.nbytes = 0
        self.__name__ = "numpy" if device == "cpu" else "cupy"

    def empty(self, shape: Any, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Counts an array of that shape."""
        extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        self.nbytes += math.prod(extents) * np.dtype(dtype).itemsize
        return np.broadcast_to(np.empty((), dtype), extents)

    zeros = ones = empty

    def arange(self, stop: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """Counts an array of so many numbers."""
        return self.empty(stop, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
