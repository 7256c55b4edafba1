"""The Gaussian error linear unit in GPU memory. All arrays are C-contiguous."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import each

SLOPE, CUBE = 2 * (2 / np.pi) ** 0.5, 0.044715
_SOURCE = r"""
extern "C" __global__ void gelu(const T* x, T* y, long long n, T slope, T cube) {
    const I i = INDEX;
    if (i >= n) return;
    const T v = x[i];
    y[i] = v / (1 + exp(-slope * (v + cube * v * v * v)));
}

extern "C" __global__ void gelu_backward(const T* x, T* dy, long long n, T slope, T cube) {
    const I i = INDEX;
    if (i >= n) return;
    const T v = x[i], share = 1 / (1 + exp(-slope * (v + cube * v * v * v)));
    dy[i] *= share * (1 + v * (1 - share) * (slope * (1 + 3 * cube * v * v)));
}
"""


def gelu(x: Array, y: Array) -> None:
    kind = x.dtype.type
    each(_SOURCE, "gelu", x.size, x, x, y, np.int64(x.size), kind(SLOPE), kind(CUBE))


def gelu_backward(x: Array, dy: Array) -> None:
    kind = x.dtype.type
    each(_SOURCE, "gelu_backward", x.size, x, x, dy, np.int64(x.size), kind(SLOPE), kind(CUBE))
