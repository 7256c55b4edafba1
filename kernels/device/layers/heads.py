"""Causal attention in GPU memory: products by cuBLAS, one call a head for all samples; a warp for a row of shares."""

import math

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device import blas
from psgd.kernels.device.each import THREADS, kernel

_SOURCE = r"""
__device__ T sum(T value) {
    for (int away = 16; away; away /= 2) value += __shfl_xor_sync(~0u, value, away);
    return value;
}

__device__ T largest(T value) {
    for (int away = 16; away; away /= 2) {
        const T other = __shfl_xor_sync(~0u, value, away);
        value = other > value || other != other ? other : value;
    }
    return value;
}

extern "C" __global__ void causal_softmax(T* scores, long long rows, int tokens, T scale) {
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32, last = row % tokens;
    if (row >= rows) return;
    scores += row * tokens;
    T top = scores[0];
    for (int j = lane; j <= last; j += 32) top = scores[j] > top || scores[j] != scores[j] ? scores[j] : top;
    top = largest(top);
    T total = 0;
    for (int j = lane; j < tokens; j += 32) {
        const T power = j <= last ? exp((scores[j] - top) * scale) : (T)0;
        scores[j] = power;
        total += power;
    }
    const T factor = 1 / sum(total);
    for (int j = lane; j <= last; j += 32) scores[j] *= factor;
}

extern "C" __global__ void causal_softmax_backward(const T* shares, T* slopes, long long rows, int tokens, T scale) {
    const long long row = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32, last = row % tokens;
    if (row >= rows) return;
    shares += row * tokens;
    slopes += row * tokens;
    T mean = 0;
    for (int j = lane; j <= last; j += 32) mean += shares[j] * slopes[j];
    mean = sum(mean);
    for (int j = lane; j < tokens; j += 32) slopes[j] = j <= last ? shares[j] * (slopes[j] - mean) * scale : (T)0;
}
"""


def attend(qkv: Array, shares: Array, y: Array) -> None:
    for head in range(qkv.shape[2]):
        q, k = qkv[:, :, head, 0], qkv[:, :, head, 1]
        blas.matmul_strided(q, k.transpose(0, 2, 1), shares[:, head])
    _by_row("causal_softmax", qkv, shares)
    for head in range(qkv.shape[2]):
        blas.matmul_strided(shares[:, head], qkv[:, :, head, 2], y[:, :, head])


def attend_backward(qkv: Array, shares: Array, dy: Array, dqkv: Array, scratch: Array) -> None:
    dscores = scratch[: len(qkv)]
    for head in range(qkv.shape[2]):
        share, slope = shares[:, head], dy[:, :, head]
        blas.matmul_strided(share.transpose(0, 2, 1), slope, dqkv[:, :, head, 2])
        blas.matmul_strided(slope, qkv[:, :, head, 2].transpose(0, 2, 1), dscores[:, head])
    _by_row("causal_softmax_backward", qkv, shares, dscores)
    for head in range(qkv.shape[2]):
        slope = dscores[:, head]
        blas.matmul_strided(slope, qkv[:, :, head, 1], dqkv[:, :, head, 0])
        blas.matmul_strided(slope.transpose(0, 2, 1), qkv[:, :, head, 0], dqkv[:, :, head, 1])


def _by_row(name: str, qkv: Array, *matrices: Array) -> None:
    """Starts a kernel with a warp for each row of the shares."""
    tokens = matrices[0].shape[-1]
    rows = matrices[0].size // tokens
    start = kernel(_SOURCE, name, qkv.dtype.name)
    scale = qkv.dtype.type(1 / math.sqrt(qkv.shape[-1]))
    start((-(-rows * 32 // THREADS),), (THREADS,), (*matrices, np.int64(rows), np.int32(tokens), scale))
