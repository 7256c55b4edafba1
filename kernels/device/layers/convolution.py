"""Windows over images in GPU memory: a convolution's two halves beside its product.

All arrays are C-contiguous, (samples, height, width, channels). The padding around
x need not be there: `padding` says how many zeros to think of.
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
    if x.dtype == np.float32 and x.shape[3] % 4 == 0 and x.data.ptr % 16 == columns.data.ptr % 16 == 0:
        x, columns = x.view(np.complex128), columns.view(np.complex128)  # four at once: they are only copied
    sizes = ints((*x.shape[1:], *columns.shape[1:4], stride, padding))
    each(_UNFOLD, "unfold", columns.size, x, x, columns, np.int64(columns.size), *sizes)


def fold(columns: Array, x: Array, stride: int, padding: int = 0) -> None:
    sizes = ints((*x.shape[1:], *columns.shape[1:4], stride, padding))
    each(_SOURCE, "fold", x.size, x, columns, x, np.int64(x.size), *sizes)
