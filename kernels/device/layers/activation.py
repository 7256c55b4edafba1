"""Bias and ReLU in GPU memory. All arrays are C-contiguous."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.column_sum import column_sum
from psgd.kernels.device.each import each

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

extern "C" __global__ void relu_backward(T* dy, const T* y, long long n) {
    const I i = INDEX;
    if (i < n && !(y[i] > 0)) dy[i] = 0;
}
"""


def add_bias(y: Array, bias: Array) -> None:
    _bias(y, bias, np.False_)


def bias_relu(y: Array, bias: Array) -> None:
    _bias(y, bias, np.True_)


def _bias(y: Array, bias: Array, rectify: np.bool_) -> None:
    width = 16 // y.dtype.itemsize
    packed = bias.size % width == 0 and y.data.ptr % 16 == 0 and bias.data.ptr % 16 == 0
    n = y.size // width if packed else y.size
    each(_SOURCE, "bias_relu", n, y, y, bias, np.int64(n), np.int32(bias.size), rectify, np.bool_(packed))


def bias_relu_backward(y: Array, dy: Array, dbias: Array) -> None:
    column_sum(dy, dbias, y)


def relu_backward(y: Array, dy: Array, mask: Array) -> None:
    each(_SOURCE, "relu_backward", dy.size, dy, dy, y, np.int64(dy.size))
