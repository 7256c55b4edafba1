"""Max pooling, and the mean over tokens with the host's bits, in GPU memory. All arrays are C-contiguous."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import each, ints

_SOURCE = r"""
extern "C" __global__ void max_pool(const T* x, T* y, unsigned char* winner, long long n, int height, int width,
                                    int channels, int down, int across, int size) {
    const I i = INDEX;
    if (i >= n) return;
    const I cell = i / channels;
    const int column = cell % across * size, row = cell / across % down * size;
    const T* at = x + ((cell / across / down * height + row) * width + column) * channels + i % channels;
    T best = *at;
    int place = 0;
    for (int k = 1; k < size * size; ++k) {
        const T value = at[((I)(k / size) * width + k % size) * channels];
        if (value > best) {
            best = value;
            place = k;
        }
    }
    y[i] = best;
    winner[i] = place;
}

extern "C" __global__ void max_pool_backward(const T* dy, const unsigned char* winner, T* dx, long long n, int height,
                                             int width, int channels, int down, int across, int size) {
    const I i = INDEX;
    if (i >= n) return;
    const I cell = i / channels;
    const int column = cell % across * size, row = cell / across % down * size, place = winner[i];
    T* at = dx + ((cell / across / down * height + row) * width + column) * channels + i % channels;
    const T value = dy[i];
    for (int k = 0; k < size * size; ++k)
        at[((I)(k / size) * width + k % size) * channels] = k == place ? value : 0;
}

extern "C" __global__ void mean_pool(const T* x, T* y, long long n, int tokens, int features) {
    const I i = INDEX;
    if (i >= n) return;
    const T* at = x + i / features * features * tokens + i % features;
    T sum = *at;
    for (int t = 1; t < tokens; ++t) sum += at[(I)t * features];
    y[i] = sum / tokens;
}

extern "C" __global__ void mean_pool_backward(const T* dy, T* dx, long long n, int tokens, int features) {
    const I i = INDEX;
    if (i >= n) return;
    dx[i] = dy[i / features / tokens * features + i % features] / tokens;
}
"""


def max_pool(x: Array, y: Array, winner: Array, size: int) -> None:
    sizes = ints((*x.shape[1:], *y.shape[1:3], size))
    each(_SOURCE, "max_pool", y.size, x, x, y, winner, np.int64(y.size), *sizes)


def max_pool_backward(dy: Array, winner: Array, dx: Array, size: int) -> None:
    sizes = ints((*dx.shape[1:], *dy.shape[1:3], size))
    each(_SOURCE, "max_pool_backward", dy.size, dy, dy, winner, dx, np.int64(dy.size), *sizes)


def mean_pool(x: Array, y: Array) -> None:
    each(_SOURCE, "mean_pool", y.size, x, x, y, np.int64(y.size), *ints(x.shape[1:]))


def mean_pool_backward(dy: Array, dx: Array) -> None:
    each(_SOURCE, "mean_pool_backward", dx.size, dy, dy, dx, np.int64(dx.size), *ints(dx.shape[1:]))
