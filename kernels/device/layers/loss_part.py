"""Softmax cross-entropy of a part of the classes, in GPU memory. All sums have a fixed order."""

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import THREADS, kernel

_SOURCE = r"""
#define NOTHING __int_as_float(0x7fffffff)
// A block for a row.
extern "C" __global__ void part_facts(T* logits, const long long* labels, long long first, long long classes,
                                      double* facts, int n, int mine, int* bad) {
    __shared__ T tops[256];
    __shared__ int places[256];
    __shared__ double sums[256];
    const int row = blockIdx.x, me = threadIdx.x;
    T* z = logits + (long long)row * mine;
    const long long label = labels[row];
    if (label < 0 || label >= classes) {
        if (me == 0) atomicMin(bad, row);
        return;
    }
    T top = 0;
    int place = mine;
    bool nan = false;
    for (int j = me; j < mine; j += 256) {
        const T value = z[j];
        nan |= value != value;
        if (place == mine || value > top) top = value, place = j;
    }
    tops[me] = top, places[me] = place;
    nan = __syncthreads_or(nan);
    for (int half = 128; half; half /= 2) {
        if (me < half) {
            const T other = tops[me + half];
            const int there = places[me + half];
            if (there < mine && (places[me] == mine || other > tops[me] || (other == tops[me] && there < places[me])))
                tops[me] = other, places[me] = there;
        }
        __syncthreads();
    }
    top = tops[0];
    if (me == 0) {
        const long long at = label - first;
        facts[row] = top;
        facts[2LL * n + row] = at >= 0 && at < mine ? (double)z[at] : 0.0;
        facts[3LL * n + row] = (double)(first + places[0]);
    }
    __syncthreads();
    double sum = 0;
    for (int j = me; j < mine; j += 256) {
        const T power = exp(z[j] - top);
        z[j] = power;
        sum += power;
    }
    sums[me] = sum;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (me < half) sums[me] += sums[me + half];
        __syncthreads();
    }
    if (me == 0) facts[1LL * n + row] = nan ? (double)NOTHING : sums[0];
}

extern "C" __global__ void part_gradient(T* logits, const long long* labels, long long first, double scale,
                                         const double* everyones, int rank, int ranks, int n, int mine,
                                         double* results) {
    const int row = blockIdx.x;
    int best = 0;
    for (int r = 1; r < ranks; ++r)
        if (everyones[4LL * n * r + row] > everyones[4LL * n * best + row]) best = r;
    const double top = everyones[4LL * n * best + row];
    double total = 0, picked = 0;
    for (int r = 0; r < ranks; ++r) {
        const double* theirs = everyones + 4LL * n * r + row;
        total += theirs[1LL * n] * exp(theirs[0] - top);
        picked += theirs[2LL * n];
    }
    const T factor = scale * exp(everyones[4LL * n * rank + row] - top) / total;
    T* z = logits + (long long)row * mine;
    const long long label = labels[row], at = label - first;
    for (int j = threadIdx.x; j < mine; j += blockDim.x) z[j] = z[j] * factor - (j == at ? (T)scale : (T)0);
    if (threadIdx.x == 0) {
        results[row] = log(total) - (picked - top);
        results[n + row] = everyones[4LL * n * best + 3LL * n + row] == (double)label;
    }
}
"""


def part_facts(logits: Array, labels: Array, first: int, classes: int, facts: Array) -> int:
    """Waits for the result."""
    n, mine = logits.shape
    bad = cupy.full(1, n, np.int32)
    start = kernel(_SOURCE, "part_facts", logits.dtype.name)
    sizes = np.int64(first), np.int64(classes)
    start((n,), (THREADS,), (logits, labels, *sizes, facts, np.int32(n), np.int32(mine), bad))
    row = int(bad[0])
    return row if row < n else -1


def part_gradient(
    logits: Array, labels: Array, first: int, scale: float, everyones: Array, rank: int
) -> tuple[float, int]:
    """Waits for the result."""
    n, mine = logits.shape
    results = cupy.empty((2, n), np.float64)
    start = kernel(_SOURCE, "part_gradient", logits.dtype.name)
    sizes = np.int32(rank), np.int32(len(everyones)), np.int32(n), np.int32(mine)
    start((n,), (THREADS,), (logits, labels, np.int64(first), np.float64(scale), everyones, *sizes, results))
    loss, correct = results.sum(axis=1).tolist()
    return loss, int(correct)
