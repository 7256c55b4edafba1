"""Which array library an array belongs to, without importing one that is not in use."""

import sys
from typing import Any, TypeAlias

import numpy as np

from psgd.kernels.errors import UsageError

Array: TypeAlias = Any
"""A `numpy.ndarray` or a `cupy.ndarray`."""


def array_module(array: Array) -> Any:
    """Returns `numpy` or `cupy`, whichever `array` belongs to.

    Raises:
        UsageError: it belongs to neither.
    """
    if isinstance(array, np.ndarray):
        return np
    cupy = sys.modules.get("cupy")  # a CuPy array exists only if CuPy was imported
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    raise UsageError(f"expected a NumPy or CuPy array, got {type(array).__module__}.{type(array).__name__}")


def address(array: Array) -> int:
    """Returns where an array begins, on the GPU or on the host."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
