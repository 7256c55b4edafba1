"""Buffers that several layers use one after the other."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from psgd.kernels.array import Array

Pool = dict[Any, list[Array]]


class PooledArrays:
    """In place of `numpy` or `cupy` where buffers are made: those of another user of the pool serve again.

    One user does not get a buffer twice. What the users write, others find: only for buffers whose contents do not
    outlast a pass of their user. Arrays of zeros are not shared, since layers rely on what they left there.

    Args:
        xp: makes what the pool lacks.
        pool: of all users, by shape and dtype.

    Attributes:
        apart: makes buffers that no other user gets.
    """

    def __init__(self, xp: Any, pool: Pool) -> None:
        self._xp, self._pool = xp, pool
        self.apart: Any = getattr(xp, "apart", xp)
        self._taken: Counter[Any] = Counter()

    @property
    def used(self) -> bool:
        """Whether this user has a buffer of the pool."""
        return bool(self._taken)

    def empty(self, shape: Any, dtype: DTypeLike = np.float64) -> Array:
        """An uninitialized array."""
        return self._take("empty", shape, dtype)

    def ones(self, shape: Any, dtype: DTypeLike = np.float64) -> Array:
        """An array of ones, which stays so."""
        return self._take("ones", shape, dtype)

    def _take(self, kind: str, shape: Any, dtype: DTypeLike) -> Array:
        extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        key = (kind, extents, np.dtype(dtype).str)
        arrays = self._pool.setdefault(key, [])
        index = self._taken[key]
        self._taken[key] += 1
        if index == len(arrays):
            arrays.append(getattr(self._xp, kind)(extents, dtype))
        return arrays[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)
