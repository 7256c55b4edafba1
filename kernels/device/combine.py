"""`out = a op b` and `out = out / divisor` on arrays in GPU memory, given as addresses: what a reduction's step does.

The same meaning, and the same bits, as `psgd.kernels.reduce` on the host. 16 bytes at a time where addresses allow.
"""

import functools
from typing import Any

import cupy

from psgd.kernels.reduce import MAX, MIN, PROD, SUM

TYPES = {
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}
FORMULAS = {
    SUM: "x + y",
    PROD: "x * y",
    MIN: "(x < y || x != x) ? x : y",
    MAX: "(y < x || x != x) ? x : y",
}
_SOURCE = r"""
struct alignas(16) Pack { T v[16 / sizeof(T)]; };

__device__ __forceinline__ T op(T x, T y) { return (T)(FORMULA); }

extern "C" __global__ void combine(T* out, const T* a, const T* b, long long n) {
    const int width = 16 / sizeof(T);
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const bool aligned = (((unsigned long long)out | (unsigned long long)a | (unsigned long long)b) & 15) == 0;
    const long long packs = aligned ? n / width : 0;
    for (long long j = i; j < packs; j += stride) {
        Pack x = ((const Pack*)a)[j], y = ((const Pack*)b)[j];
#pragma unroll
        for (int k = 0; k < width; ++k) x.v[k] = op(x.v[k], y.v[k]);
        ((Pack*)out)[j] = x;
    }
    for (long long j = packs * width + i; j < n; j += stride) out[j] = op(a[j], b[j]);
}

extern "C" __global__ void divide(T* out, long long divisor, long long n) {
    const T by = (T)divisor;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long j = blockIdx.x * (long long)blockDim.x + threadIdx.x; j < n; j += stride) out[j] = out[j] / by;
}
"""
_THREADS = 512
_BLOCKS = 264  # two for each multiprocessor of the largest GPUs


def knows(dtype: str) -> bool:
    """Whether there are kernels for a dtype, by NumPy's name."""
    return dtype in TYPES


@functools.cache
def _kernels(dtype: str, op: int, device: int) -> tuple[Any, Any]:
    source = f"typedef {TYPES[dtype]} T;\n" + _SOURCE.replace("FORMULA", FORMULAS[op])
    module = cupy.RawModule(code=source, options=("-std=c++14",))
    return module.get_function("combine").kernel, module.get_function("divide").kernel


def combine(op: int, dtype: str, out: int, a: int, b: int, n: int, stream: Any) -> None:
    """Starts `out = a op b`.

    Args:
        op: SUM, PROD, MIN or MAX of `psgd.kernels.reduce`.
        dtype: NumPy's name of the elements' type.
        out: address; may be `a` or `b`, otherwise overlaps neither.
        a: address of the left operand.
        b: address of the right one.
        n: elements.
        stream: a `cupy.cuda.Stream` of the current device.
    """
    if n:
        kernel, _ = _kernels(dtype, op, cupy.cuda.runtime.getDevice())
        kernel((_blocks(n),), (_THREADS,), (out, a, b, n), 0, stream)


def divide(dtype: str, out: int, divisor: int, n: int, stream: Any) -> None:
    """Starts `out = out / divisor` likewise."""
    if n:
        _, kernel = _kernels(dtype, SUM, cupy.cuda.runtime.getDevice())
        kernel((_blocks(n),), (_THREADS,), (out, divisor, n), 0, stream)


def _blocks(n: int) -> int:
    return min(_BLOCKS, -(-n // _THREADS))
