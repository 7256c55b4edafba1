"""Dropout by key in GPU memory: one thread draws for four elements. All arrays are C-contiguous."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import each

_SOURCE = r"""
extern "C" __global__ void drop(const T* x, T* y, const long long* samples, const unsigned long long* key,
                                unsigned stream, unsigned long long least, T scale, long long n, int features) {
    const I i = INDEX;
    if (i >= n) return;
    const int across = (features + 3) / 4;
    const I row = i / across;
    const int start = 4 * (int)(i % across);
    const unsigned long long sample = samples[row];
    unsigned c[4] = {(unsigned)start / 4, (unsigned)sample, (unsigned)(sample >> 32), stream};
    unsigned k0 = (unsigned)key[0], k1 = (unsigned)(key[0] >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned long long p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
        c[0] = (unsigned)(p1 >> 32) ^ c[1] ^ k0;
        c[1] = (unsigned)p1;
        c[2] = (unsigned)(p0 >> 32) ^ c[3] ^ k1;
        c[3] = (unsigned)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const long long at = (long long)row * features + start;
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (start + j < features) y[at + j] = c[j] >= least ? x[at + j] * scale : (T)0;
}
"""


def drop(x: Array, y: Array, samples: Array, key: Array, stream: int, least: int, scale: float) -> None:
    rows, features = x.shape
    n = rows * -(-features // 4)
    numbers = np.uint32(stream), np.uint64(least), x.dtype.type(scale), np.int64(n), np.int32(features)
    each(_SOURCE, "drop", n, x, x, y, samples, key, *numbers)
