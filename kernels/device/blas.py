"""Matrix products by cuBLAS itself: they can be captured in a CUDA graph, and cost little on the host.

CuPy's own call cuBLAS too, but refuse to be captured. float32 is computed as float32, not in TensorFloat-32.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError

_WORKSPACE_BYTES = 32 << 20
_KINDS = {"float32": ("S", ctypes.c_float), "float64": ("D", ctypes.c_double)}


@functools.cache
def _library() -> Any:
    _ = cupy.cuda.Device().cublas_handle  # CuPy knows where the library is, and has it loaded now
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcublas.so" in line:
            return ctypes.CDLL(line[line.index("/") :])
    raise UsageError("device cuda: expected CuPy to have loaded libcublas.so, which no mapping of this process shows")


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLAS: status {status}")


_lenders: dict[tuple[int, int], tuple[Any, int]] = {}
"""By device and stream: the stream itself, since another one at the address of one that is gone would be taken for it,
and the stream whose workspace it uses."""


def borrow_workspace(stream: Any, lender: Any) -> None:
    """Products on a stream use another stream's memory from now on.

    Args:
        stream: has computed no product yet, and computes none while the other one does: it records what runs there.
        lender: of the same GPU.
    """
    _lenders[cupy.cuda.runtime.getDevice(), stream.ptr] = stream, lender.ptr


@functools.cache
def _workspace(device: int, stream: int) -> Array:
    return cupy.empty(_WORKSPACE_BYTES, np.uint8)


@functools.cache
def _handle(device: int, stream: int) -> tuple[ctypes.c_void_p, Array]:
    """CuBLAS's state for one stream, with memory that is there before, so that a captured call allocates none."""
    library, handle = _library(), ctypes.c_void_p()
    _check(library.cublasCreate_v2(ctypes.byref(handle)))
    _, lender = _lenders.get((device, stream), (None, stream))
    workspace = _workspace(device, lender)
    _check(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
    _check(
        library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(_WORKSPACE_BYTES))
    )
    return handle, workspace


@functools.cache
def _function(name: str, dtype: str) -> tuple[Any, Any, Any]:
    letter, number = _KINDS[dtype]
    return getattr(_library(), f"cublas{letter}{name}"), ctypes.byref(number(1)), ctypes.byref(number(0))


def _form(x: Array) -> tuple[int, int]:
    """Whether a matrix is the transpose of what lies in memory, and how long a row there is."""
    if x.flags.c_contiguous:
        return 0, x.shape[1]
    if x.flags.f_contiguous:
        return 1, x.shape[0]
    raise UsageError(f"matmul: expected a matrix that is contiguous or a transpose, got strides {x.strides}")


def _stream() -> tuple[int, int]:
    return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr


def matmul(a: Array, b: Array, out: Array) -> Array:
    """Starts `out = a b` for matrices; a and b may be transposes. Returns out."""
    (m, k), n = a.shape, b.shape[1]
    (turn_a, row_a), (turn_b, row_b) = _form(a), _form(b)
    handle, _ = _handle(*_stream())
    gemm, one, zero = _function("gemm_v2", out.dtype.name)
    # cuBLAS counts by columns, so it sees each matrix as its transpose: out^T = b^T a^T.
    left, right, to = (ctypes.c_void_p(x.data.ptr) for x in (b, a, out))
    _check(gemm(handle, turn_b, turn_a, n, m, k, one, left, row_b, right, row_a, zero, to, n))
    return out


def matmul_each(a: Array, b: Array, out: Array) -> None:
    """Starts `out[i] = a[i]^T b[i]` for contiguous (s, k, m), (s, k, n) and (s, m, n)."""
    (count, k, m), n = a.shape, b.shape[2]
    handle, _ = _handle(*_stream())
    gemm, one, zero = _function("gemmStridedBatched", out.dtype.name)
    left, right, to = (ctypes.c_void_p(x.data.ptr) for x in (b, a, out))
    step = ctypes.c_longlong
    sizes = (one, left, n, step(k * n), right, m, step(k * m), zero, to, n, step(m * n), count)
    _check(gemm(handle, 0, 1, n, m, k, *sizes))


def matmul_strided(a: Array, b: Array, out: Array) -> None:
    """Starts `out[i] = a[i] b[i]` for (s, m, k), (s, k, n) and (s, m, n) that need not be contiguous.

    Of a and b one of the last two axes has neighbours side by side, of out the last one.
    """
    (count, m, k), n = a.shape, b.shape[2]
    (turn_a, row_a), (turn_b, row_b), (turn_out, row_out) = _laid(a), _laid(b), _laid(out)
    if turn_out:
        raise UsageError(f"matmul_strided: expected rows of out in one piece, got strides {out.strides}")
    handle, _ = _handle(*_stream())
    gemm, one, zero = _function("gemmStridedBatched", out.dtype.name)
    left, right, to = (ctypes.c_void_p(x.data.ptr) for x in (b, a, out))
    step_a, step_b, step_out = (ctypes.c_longlong(x.strides[0] // x.itemsize) for x in (a, b, out))
    sizes = (n, m, k, one, left, row_b, step_b, right, row_a, step_a, zero, to, row_out, step_out, count)
    _check(gemm(handle, turn_b, turn_a, *sizes))


def _laid(x: Array) -> tuple[int, int]:
    """As `_form`, of matrices that are parts of larger ones."""
    _, down, across = (stride // x.itemsize for stride in x.strides)
    if across == 1 or x.shape[2] == 1:
        return 0, max(down, x.shape[2])
    if down == 1 or x.shape[1] == 1:
        return 1, max(across, x.shape[1])
    raise UsageError(f"matmul_strided: expected one axis in one piece, got strides {x.strides}")
