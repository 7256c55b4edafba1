"""What parameters, gradients and optimizer states need where they may lie on a GPU or on the host. Imports no CuPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array, array_module


def on_device(array: Array) -> bool:
    """Whether it is a CuPy array."""
    return not isinstance(array, np.ndarray)


def fill(array: Array, values: NDArray[Any]) -> None:
    """`array[...] = values`, which lie on the host, in the dtype of `array`."""
    if on_device(array):
        array.set(np.ascontiguousarray(values, array.dtype).reshape(array.shape))
    else:
        array[...] = values


def on_host(array: Array) -> NDArray[Any]:
    """The array itself, or a copy on the host. Waits for the device."""
    return array.get() if on_device(array) else array  # type: ignore[no-any-return]


def registered(comm: Any, like: Array, size: int | None = None) -> Array:
    """Zeros of the shape of `like`, or so many: on the host of `comm.empty`, else on the GPU of `like`. Collective."""
    shape = like.shape if size is None else size
    return array_module(like).zeros(shape, like.dtype) if on_device(like) else comm.empty(shape, like.dtype)
