"""Page-locked memory on the host, from which and to which a GPU copies by itself while both work on."""

import contextlib
import mmap
import weakref
from typing import Any

import cupy
import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.kernels.array import Array


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array in memory of its own that is page-locked as long as it lives."""
    n, kind = int(np.prod(shape)), np.dtype(dtype)
    memory = cupy.cuda.alloc_pinned_memory(max(1, n * kind.itemsize))
    return np.frombuffer(memory, kind, n).reshape(shape)


def seen_by_device(array: NDArray[Any]) -> Array:
    """The same memory, page-locked, as kernels read and write it."""
    address, device = array.ctypes.data, cupy.cuda.runtime.getDevice()
    memory = cupy.cuda.UnownedMemory(address, array.nbytes, array, device)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))


class Pin:
    """Page-locks memory that exists, where the system allows it; elsewhere copies are slower and just as right.

    Only memory that begins with a page: of a page that is shared with others, copies of theirs would fail.
    """

    def __init__(self, *arrays: NDArray[Any]) -> None:
        self._arrays = []
        for array in arrays:
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                if array.nbytes and array.ctypes.data % mmap.PAGESIZE == 0:
                    cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 1)  # 1: for all contexts
                    self._arrays.append(array)
        self.release = weakref.finalize(self, _release, self._arrays)  # before the memory goes


def _release(arrays: list[NDArray[Any]]) -> None:
    while arrays:
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.runtime.hostUnregister(arrays.pop().ctypes.data)


def download(to: NDArray[Any], source: Array) -> None:
    """Starts copying to the host, on the current stream; `to` is complete once that is synchronized."""
    _copy(to.ctypes.data, source.data.ptr, source.nbytes)


def upload(to: Array, source: NDArray[Any]) -> None:
    """Starts copying to the GPU, on the current stream; `source` must stay as it is until then."""
    _copy(to.data.ptr, source.ctypes.data, to.nbytes)


def _copy(to: int, source: int, nbytes: int) -> None:
    stream = cupy.cuda.get_current_stream()
    if nbytes:
        cupy.cuda.runtime.memcpyAsync(to, source, nbytes, cupy.cuda.runtime.memcpyDefault, stream.ptr)


def wait() -> None:
    """Blocks until the current stream is done."""
    cupy.cuda.get_current_stream().synchronize()
