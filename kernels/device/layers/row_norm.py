"""Normalization of rows in GPU memory: a warp for a row. All arrays are C-contiguous; sums have a fixed order."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.column_sum import column_sum, scratch
from psgd.kernels.device.each import THREADS, kernel

_SOURCE = r"""
__device__ T sum(T value) {
    for (int away = 16; away; away /= 2) value += __shfl_xor_sync(~0u, value, away);
    return value;
}

extern "C" __global__ void layer_norm(const T* x, const T* factor, const T* summand, T* y, T* mean, T* scale, int n,
                                      int width, T epsilon) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    x += (long long)row * width;
    y += (long long)row * width;
    T total = 0;
    for (int j = lane; j < width; j += 32) total += x[j];
    const T middle = sum(total) / width;
    total = 0;
    for (int j = lane; j < width; j += 32) total += (x[j] - middle) * (x[j] - middle);
    const T by = 1 / sqrt(sum(total) / width + epsilon);
    if (lane == 0) mean[row] = middle, scale[row] = by;
    for (int j = lane; j < width; j += 32) y[j] = (x[j] - middle) * by * factor[j] + summand[j];
}

extern "C" __global__ void layer_norm_backward(const T* x, T* dy, const T* factor, const T* mean, const T* scale,
                                               int n, int width) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    x += (long long)row * width;
    dy += (long long)row * width;
    const T middle = mean[row], by = scale[row];
    T total = 0, along = 0;
    for (int j = lane; j < width; j += 32) {
        const T value = dy[j] * factor[j];
        total += value;
        along += value * (x[j] - middle);
    }
    total = sum(total) / width;
    along = sum(along) * by * by / width;
    for (int j = lane; j < width; j += 32) dy[j] = by * (dy[j] * factor[j] - total - (x[j] - middle) * along);
}

// what the factor's gradient is the sum of, by row
extern "C" __global__ void products(const T* x, const T* dy, const T* mean, const T* scale, T* out, long long n,
                                    int width) {
    const I i = INDEX;
    if (i < n) out[i] = dy[i] * (x[i] - mean[i / width]) * scale[i / width];
}
"""


def layer_norm(x: Array, factor: Array, summand: Array, y: Array, mean: Array, scale: Array, epsilon: float) -> None:
    n, width = x.shape
    start = kernel(_SOURCE, "layer_norm", x.dtype.name)
    sizes = np.int32(n), np.int32(width), x.dtype.type(epsilon)
    start((-(-n * 32 // THREADS),), (THREADS,), (x, factor, summand, y, mean, scale, *sizes))


def layer_norm_backward(
    x: Array, dy: Array, factor: Array, mean: Array, scale: Array, dfactor: Array, dsummand: Array
) -> None:
    n, width = x.shape
    kind = x.dtype.name
    parts = scratch("layernorm", x.size, x.dtype).reshape(n, width)
    wide = x.size >= 2**31
    start = kernel(_SOURCE, "products", kind, wide)
    start((-(-x.size // THREADS),), (THREADS,), (x, dy, mean, scale, parts, np.int64(x.size), np.int32(width)))
    column_sum(parts, dfactor)
    column_sum(dy, dsummand)
    start = kernel(_SOURCE, "layer_norm_backward", kind)
    arguments = x, dy, factor, mean, scale, np.int32(n), np.int32(width)
    start((-(-n * 32 // THREADS),), (THREADS,), arguments)
