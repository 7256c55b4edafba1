"""Windows over images in GPU memory: a convolution's two halves beside its product, and max pooling.

All arrays are C-contiguous, (samples, height, width, channels).
"""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import each, ints

_SOURCE = r"""
// Windows of `size` x `size` pixels; x is (samples, height, width, channels), columns (samples, down, across, size,
// size, channels). Outside of x, `padding` pixels wide, are zeros.
extern "C" __global__ void fold(const T* columns, T* x, long long n, int height, int width, int channels, int down,
                                int across, int size, int stride, int padding) {
    const I i = INDEX;
    if (i >= n) return;
    const int channel = i % channels;
    I rest = i / channels;
    const int column = rest % width + padding;
    rest /= width;
    const int row = rest % height + padding;
    const I sample = rest / height;
    T sum = 0;
    for (int a = max(0, (row - size + stride) / stride); a <= row / stride && a < down; ++a)
        for (int b = max(0, (column - size + stride) / stride); b <= column / stride && b < across; ++b) {
            const int u = row - a * stride, v = column - b * stride;
            if (u < size && v < size)
                sum += columns[((((sample * down + a) * across + b) * size + u) * size + v) * channels + channel];
        }
    x[i] = sum;
}

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
"""
_UNFOLD = r"""
extern "C" __global__ void unfold(const T* x, T* columns, long long n, int height, int width, int channels, int down,
                                  int across, int size, int stride, int padding) {
    const I i = INDEX;
    if (i >= n) return;
    const int run = size * channels, within = i % run;
    I rest = i / run;
    const int u = rest % size;
    rest /= size;
    const int column = rest % across * stride + within / channels - padding;
    rest /= across;
    const int row = rest % down * stride + u - padding;
    const bool inside = row >= 0 && row < height && column >= 0 && column < width;
    columns[i] = inside ? x[((rest / down * height + row) * width + column) * channels + within % channels] : T{};
}
"""


def unfold(x: Array, columns: Array, stride: int, padding: int = 0) -> None:
    """See `psgd.kernels.convolution.unfold`; here x may be without its padding."""
    if x.dtype == np.float32 and x.shape[3] % 4 == 0 and x.data.ptr % 16 == columns.data.ptr % 16 == 0:
        x, columns = x.view(np.complex128), columns.view(np.complex128)  # four at once: they are only copied
    sizes = ints((*x.shape[1:], *columns.shape[1:4], stride, padding))
    each(_UNFOLD, "unfold", columns.size, x, x, columns, np.int64(columns.size), *sizes)


def fold(columns: Array, x: Array, stride: int, padding: int = 0) -> None:
    """See `psgd.kernels.convolution.fold`; here x may be without its padding."""
    sizes = ints((*x.shape[1:], *columns.shape[1:4], stride, padding))
    each(_SOURCE, "fold", x.size, x, columns, x, np.int64(x.size), *sizes)


def max_pool(x: Array, y: Array, winner: Array, size: int) -> None:
    """See `psgd.kernels.pooling.max_pool`."""
    sizes = ints((*x.shape[1:], *y.shape[1:3], size))
    each(_SOURCE, "max_pool", y.size, x, x, y, winner, np.int64(y.size), *sizes)


def max_pool_backward(dy: Array, winner: Array, dx: Array, size: int) -> None:
    """See `psgd.kernels.pooling.max_pool_backward`."""
    sizes = ints((*dx.shape[1:], *dy.shape[1:3], size))
    each(_SOURCE, "max_pool_backward", dy.size, dy, dy, winner, dx, np.int64(dy.size), *sizes)
