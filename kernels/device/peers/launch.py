"""Compiles the kernels of peer calls and starts them: arguments are packed once, and a start is one call of CUDA's."""

import ctypes
import functools
from typing import Any

import cupy
from cupy.cuda import driver

from psgd.kernels.device.peers import common, elements, one_shot, two_shot

_NUMBERS = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "float16": ctypes.c_float,
    "bfloat16": ctypes.c_float,
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
}
"""ctypes' name of `A`, in which sums are made."""


_SOURCES = {
    "flagged": one_shot.FLAGGED,
    "pulled": one_shot.SUMS + one_shot.PULLED,
    "staged": one_shot.SUMS + two_shot.STAGED,
}


def text(name: str, kind: str, op: int, ranks: int, sizes: dict[str, int]) -> str:
    """The CUDA source of a kernel.

    Args:
        name: of the kernel.
        kind: of the elements.
        op: of `psgd.kernels.reduce`.
        ranks: of the group.
        sizes: FLAGGED_AT, FLAGGED_WORDS, PULLED_AT and PULLED_BYTES: where slots lie in a region.
    """
    names = {
        "P": ranks,
        "LINES_AT": common.LINES_AT,
        "FLAGS_AT": common.FLAGS_AT,
        "MOST_RANKS": common.MOST_RANKS,
        "DEPTH": common.DEPTH,
        "LOST": common.LOST,
        **sizes,
    }
    head = "".join(f"#define {name} {value}\n" for name, value in names.items())
    return head + elements.source(kind, op) + common.SOURCE + _SOURCES[name]


def group_type(ranks: int) -> type[ctypes.Structure]:
    """`Group` of `common`."""

    class Group(ctypes.Structure):
        _fields_ = [
            ("base", ctypes.c_uint64 * ranks),
            ("wide", ctypes.c_uint64 * ranks),
            ("state", ctypes.c_uint64),
            ("host", ctypes.c_uint64),
            ("rank", ctypes.c_uint32),
            ("fingerprint", ctypes.c_uint32),
            ("shape", ctypes.c_uint32),
            ("reserved", ctypes.c_uint32),
        ]

    return Group


def chunks_type(ranks: int) -> type[ctypes.Structure]:
    """`Chunks` of `two_shot`."""

    class Chunks(ctypes.Structure):
        _fields_ = [("start", ctypes.c_uint64 * ranks), ("length", ctypes.c_uint64 * ranks)]

    return Chunks


def number(kind: str, value: int) -> Any:
    """A value of the type in which sums of a kind are made."""
    return _NUMBERS[kind](value)


class Launch:
    """A kernel with its arguments, which may be changed between starts.

    Args:
        function: of CuPy.
        arguments: of ctypes, in the kernel's order. They are read at each start.
    """

    def __init__(self, function: Any, arguments: list[Any]) -> None:
        self._function = function.ptr
        self._arguments = arguments
        self._pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        self._packed = ctypes.addressof(self._pointers)

    def __call__(self, blocks: int, threads: int, stream: int) -> None:
        """Starts it on a stream, given by its address."""
        driver.launchKernel(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, self._packed, 0)


@functools.cache
def function(name: str, kind: str, op: int, ranks: int, sizes: tuple[tuple[str, int], ...], device: int) -> Any:
    """A compiled kernel, loaded on the current device, which is `device`."""
    source = text(name, kind, op, ranks, dict(sizes))
    kernel = cupy.RawModule(code=source, options=("-std=c++17", "--fmad=false")).get_function(name)
    return kernel.kernel
