"""JAX's arrays over the memory of a vector: the same memory where JAX takes it, else copies."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psgd.jax.leaves import Leaf
from psgd.worker.interface import Vector

ALIGNMENT = 64
"""Bytes. XLA computes on a CPU's memory in place only where it begins at a multiple of this."""


def zeros(size: int, dtype: np.dtype[Any]) -> Vector:
    """A vector of zeros in memory that JAX takes as it is."""
    memory = np.zeros(size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size * dtype.itemsize].view(dtype)


class Aliases:
    """The leaves of one vector, for a compiled function.

    JAX holds that an array never changes. These do, at each step: nothing may compute with them at that time, and
    nobody but this room may get them.

    Args:
        vector: in which the leaves are.
        leaves: and where.
        device: on which JAX is to compute.

    Attributes:
        shared: whether nothing is copied.
    """

    def __init__(self, vector: Vector, leaves: Sequence[Leaf], device: Any) -> None:
        self._views, self._device = [leaf.of(vector) for leaf in leaves], device
        self._arrays = _over(self._views, device)
        self.shared = self._arrays is not None

    def arrays(self) -> list[jax.Array]:
        """One for each leaf, of the vector's dtype, as the vector is now."""
        if self._arrays is not None:
            return self._arrays
        return [jax.device_put(view.copy(), self._device) for view in self._views]


def _over(views: Sequence[Vector], device: Any) -> list[jax.Array] | None:
    """Arrays in the same memory, or None where JAX cannot have them."""
    if device.platform != "cpu" or any(view.ctypes.data % ALIGNMENT for view in views):
        return None  # older JAX takes such memory, for code that is compiled for aligned one
    try:
        arrays = [jnp.from_dlpack(view) for view in views]
    except BufferError:  # memory that cannot be written
        return None
    pairs = zip(arrays, views, strict=True)
    same = all(a.devices() == {device} and a.unsafe_buffer_pointer() == v.ctypes.data for a, v in pairs)
    return arrays if same else None
