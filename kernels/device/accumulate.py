"""Weighted sums in GPU memory: `psgd.kernels.accumulate`, bit for bit but for the sum of squares."""

import functools
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import OPTIONS, TYPES, Elementwise

_WEIGH = Elementwise("weigh", "out result, in values", "weight", "result = weight * values")
_ADD_WEIGHTED = Elementwise("add_weighted", "inout sum, in values", "weight", "sum += weight * values")
_ADD_FLOAT16 = Elementwise(
    "add_float16",
    "inout sum, in ushort values",
    "",
    'float wide; asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(values)); sum += wide',
)
_ADD_BFLOAT16 = Elementwise(
    "add_bfloat16", "inout sum, in ushort values", "", "sum += __uint_as_float((unsigned)values << 16)"
)
_BLOCKS, _THREADS = 1056, 256
_SQUARES = """
extern "C" __global__ void squares(const T* values, double* parts, const long long n) {
    __shared__ double sums[256];
    double sum = 0;
    const long long stride = gridDim.x * 256LL;
    long long i = blockIdx.x * 256LL + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {  // eight loads at once
        T x[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = values[i + k * stride];
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += (double)x[k] * x[k];
    }
    for (; i < n; i += stride) sum += (double)values[i] * values[i];
    sums[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) parts[blockIdx.x] = sums[0];
}
"""


def weigh(out: Array, values: Array, weight: float) -> None:
    _WEIGH((out, values), (weight,))


def add_weighted(out: Array, values: Array, weight: float) -> None:
    _ADD_WEIGHTED((out, values), (weight,))


def add_narrow(out: Array, values: Array, kind: str) -> None:
    """`out += values`, widened on the way.

    Args:
        out: float32.
        values: their bits as uint16 (or float16 itself), as long.
        kind: "float16" or "bfloat16".
    """
    (_ADD_FLOAT16 if kind == "float16" else _ADD_BFLOAT16)((out, values))


@functools.cache
def _squares(dtype: str, device: int) -> tuple[Any, Array]:
    kernel = cupy.RawKernel(f"typedef {TYPES[dtype]} T;\n{_SQUARES}", "squares", options=OPTIONS)
    return kernel, cupy.zeros(_BLOCKS, np.float64)


def sum_of_squares(values: Array) -> float:
    """Sum of squares in float64, always in the same order, which is not the host's. Waits for the device."""
    kernel, parts = _squares(values.dtype.name, cupy.cuda.runtime.getDevice())
    kernel((_BLOCKS,), (_THREADS,), (values, parts, np.int64(values.size)))
    return float(sum(parts.tolist()))
