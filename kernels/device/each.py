"""Kernels of CUDA C++ with one thread for each element, compiled for a type of elements and of indices."""

import functools
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import TYPES

THREADS = 256
_TYPES = {**TYPES, "complex128": "double2"}  # what is only copied may be 16 bytes of anything


@functools.cache
def kernel(source: str, name: str, dtype: str, wide: bool = False) -> Any:
    """The kernel `name` of a source in which `T` is the type of elements, `I` that of indices, INDEX a thread's."""
    index = "long long" if wide else "unsigned"  # divisions of 64 bits are several times slower
    define = "#define INDEX ((I)blockIdx.x * blockDim.x + threadIdx.x)"
    code = f"typedef {_TYPES[dtype]} T;\ntypedef {index} I;\n{define}\n{source}"
    return cupy.RawKernel(code, name, options=("-std=c++17",))


def each(source: str, name: str, n: int, like: Array, *arguments: Any) -> None:
    """Starts a kernel with one thread for each of n elements of the dtype of `like`."""
    wide = max(getattr(argument, "size", 0) for argument in arguments) >= 2**31
    kernel(source, name, like.dtype.name, wide)((-(-n // THREADS),), (THREADS,), arguments)


def ints(values: Sequence[int]) -> list[np.int32]:
    """As arguments of a kernel."""
    return [np.int32(value) for value in values]
