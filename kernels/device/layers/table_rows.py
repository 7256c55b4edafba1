"""Rows of a table by number, and their gradient, in GPU memory. Arrays are C-contiguous; sums have a fixed order."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import THREADS, each, kernel

_SOURCE = r"""
extern "C" __global__ void look_up(const T* tokens, const T* table, T* y, long long n, int width, int vocabulary) {
    const I i = INDEX;
    if (i >= n) return;
    const T row = rint(tokens[i / width]);
    y[i] = row >= 0 && row < vocabulary ? table[(long long)row * width + i % width] : (T)0 / (T)0;
}

// A block for one row of the table: it looks at all tokens in order, 256 at a time, and adds where they are its own.
extern "C" __global__ void embed_backward(const T* tokens, const T* dy, T* dtable, int n, int width) {
    __shared__ int mine[256], parts[8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int first = blockIdx.y * 256; first < width; first += 256 * gridDim.y) {
        const int column = first + threadIdx.x;
        T sum = 0;
        for (int start = 0; start < n; start += 256) {
            const int at = start + threadIdx.x;
            const bool hit = at < n && (int)rint(tokens[at]) == blockIdx.x;
            const unsigned hits = __ballot_sync(~0u, hit);
            if (lane == 0) parts[warp] = __popc(hits);
            __syncthreads();
            int before = 0, found = 0;
            for (int w = 0; w < 8; ++w) {
                if (w < warp) before += parts[w];
                found += parts[w];
            }
            if (hit) mine[before + __popc(hits & ((1u << lane) - 1))] = at;
            __syncthreads();
            if (column < width)
                for (int k = 0; k < found; ++k) sum += dy[(long long)mine[k] * width + column];
            __syncthreads();
        }
        if (column < width) dtable[(long long)blockIdx.x * width + column] = sum;
    }
}
"""


def look_up(tokens: Array, table: Array, y: Array) -> None:
    sizes = np.int64(y.size), np.int32(y.shape[1]), np.int32(len(table))
    each(_SOURCE, "look_up", y.size, y, tokens, table, y, *sizes)


def embed_backward(tokens: Array, dy: Array, dtable: Array) -> None:
    vocabulary, width = dtable.shape
    start = kernel(_SOURCE, "embed_backward", dy.dtype.name)
    blocks = vocabulary, min(-(-width // THREADS), 65535)
    start(blocks, (THREADS,), (tokens, dy, dtable, np.int32(len(dy)), np.int32(width)))
