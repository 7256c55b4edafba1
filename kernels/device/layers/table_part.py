"""Rows by number of a part of a table, in GPU memory. Arrays are C-contiguous."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import each

_SOURCE = r"""
extern "C" __global__ void look_up_part(const T* tokens, const T* part, T* y, long long n, int width, int rows,
                                        int first, int vocabulary) {
    const I i = INDEX;
    if (i >= n) return;
    const T row = rint(tokens[i / width]);
    const bool right = row >= -first && row < vocabulary - first;  // NaN is not
    const T other = right ? (T)0 : (T)0 / (T)0;
    y[i] = right && row >= 0 && row < rows ? part[(long long)row * width + i % width] : other;
}
"""


def look_up_part(tokens: Array, part: Array, y: Array, first: int, vocabulary: int) -> None:
    sizes = np.int64(y.size), np.int32(y.shape[1]), np.int32(len(part)), np.int32(first), np.int32(vocabulary)
    each(_SOURCE, "look_up_part", y.size, y, tokens, part, y, *sizes)
