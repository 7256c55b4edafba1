"""Bias, ReLU and sums over rows in GPU memory. All arrays are C-contiguous; sums have a fixed order, so runs repeat.

Nothing here allocates once its scratch memory is large enough, so that a step can be captured as a CUDA graph.
"""

from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import THREADS, each, ints, kernel

_PARTS = 132
"""Into which tall sums are cut: enough blocks for a large GPU, and few enough for one block to add their results."""
_SOURCE = r"""
constexpr int W = 16 / sizeof(T);
struct alignas(16) Pack { T v[W]; };

// y and bias are aligned to 16 bytes, and `units` is a multiple of W, where `packed`
extern "C" __global__ void bias_relu(T* y, const T* bias, long long n, int units, bool rectify, bool packed) {
    const I i = INDEX;
    if (i >= n) return;
    const int across = packed ? units / W : units;
    const I unit = i % across;
    if (packed) {
        Pack value = ((Pack*)y)[i];
        const Pack more = ((const Pack*)bias)[unit];
#pragma unroll
        for (int k = 0; k < W; ++k) {
            const T sum = value.v[k] + more.v[k];
            value.v[k] = rectify && sum < 0 ? 0 : sum;  // NaN stays
        }
        ((Pack*)y)[i] = value;
    } else {
        const T sum = y[i] + bias[unit];
        y[i] = rectify && sum < 0 ? 0 : sum;
    }
}

// out[p, c] = the sum of rows p * per and following; with y, of dy where y > 0, which is written back
extern "C" __global__ void column_sum(T* dy, const T* y, T* out, int rows, int units, int per) {
    __shared__ T sums[256];
    const int c = blockIdx.x * blockDim.x + threadIdx.x, last = min(rows, (int)(blockIdx.y + 1) * per);
    T sum = 0;
    if (c < units)
#pragma unroll 4
        for (int r = blockIdx.y * per + threadIdx.y; r < last; r += blockDim.y) {
            const long long i = (long long)r * units + c;
            T value = dy[i];
            if (y) {
                value = y[i] > 0 ? value : 0;
                dy[i] = value;
            }
            sum += value;
        }
    sums[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < units) {
        for (int k = 1; k < blockDim.y; ++k) sum += sums[k * blockDim.x + threadIdx.x];
        out[(long long)blockIdx.y * units + c] = sum;
    }
}

extern "C" __global__ void relu_backward(T* dy, const T* y, long long n) {
    const I i = INDEX;
    if (i < n && !(y[i] > 0)) dy[i] = 0;
}
"""


def add_bias(y: Array, bias: Array) -> None:
    """See `psgd.kernels.activation.add_bias`."""
    _bias(y, bias, np.False_)


def bias_relu(y: Array, bias: Array) -> None:
    """See `psgd.kernels.activation.bias_relu`."""
    _bias(y, bias, np.True_)


def _bias(y: Array, bias: Array, rectify: np.bool_) -> None:
    width = 16 // y.dtype.itemsize
    packed = bias.size % width == 0 and y.data.ptr % 16 == 0 and bias.data.ptr % 16 == 0
    n = y.size // width if packed else y.size
    each(_SOURCE, "bias_relu", n, y, y, bias, np.int64(n), np.int32(bias.size), rectify, np.bool_(packed))


def bias_relu_backward(y: Array, dy: Array, dbias: Array) -> None:
    """See `psgd.kernels.activation.bias_relu_backward`."""
    column_sum(dy, dbias, y)


def relu_backward(y: Array, dy: Array) -> None:
    """Zeroes dy where the output y is not positive, in place."""
    each(_SOURCE, "relu_backward", dy.size, dy, dy, y, np.int64(dy.size))


def column_sum(values: Array, out: Array, y: Array = None) -> None:
    """Overwrites `out` with the sum over all but its axes; with y, `values` first become 0 where y is not positive."""
    units = out.size
    rows = values.size // units
    wide = min(32, 1 << (units - 1).bit_length())
    tall = THREADS // wide
    across = -(-units // wide)
    parts = min(-(-rows // (8 * tall)), _PARTS) if rows > 16 * tall else 1
    per = -(-rows // parts)
    parts = -(-rows // per)
    start = kernel(_SOURCE, "column_sum", values.dtype.name)
    to = out if parts == 1 else scratch("sums", parts * units, values.dtype)
    mask = np.uintp(0) if y is None else y
    start((across, parts), (wide, tall), (values, mask, to, *ints((rows, units, per))))
    if parts > 1:
        start((across, 1), (wide, tall), (to, np.uintp(0), out, *ints((parts, units, parts))))


_SCRATCH: dict[tuple[str, str, int], list[Array]] = {}


def scratch(name: str, n: int, dtype: Any) -> Array:
    """Memory for partial results, by name, used again by whoever comes next on the stream.

    What was too small is kept for the graphs that were captured with it.
    """
    known = _SCRATCH.setdefault((name, str(dtype), cupy.cuda.runtime.getDevice()), [])
    if not known or known[-1].size < n:
        known.append(cupy.empty(max(n, 1 << 16), dtype))
    return known[-1][:n]
