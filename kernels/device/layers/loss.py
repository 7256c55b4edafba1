"""Softmax cross-entropy in one pass over logits in GPU memory; the result stays there until it is asked for."""

import functools
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import TYPES

LOSS, CORRECT, BAD, FIGURES = range(4)
_LARGE, _WARPS, _BLOCKS = 1 << 16, 8, 1024
"""From so many logits on blocks of so many warps share the rows, so many blocks at most."""
_SOURCE = r"""
__device__ void together(double& loss, int& correct, int& bad) {
    for (int away = 16; away; away /= 2) {
        loss += __shfl_xor_sync(~0u, loss, away);
        correct += __shfl_xor_sync(~0u, correct, away);
        bad = min(bad, __shfl_xor_sync(~0u, bad, away));
    }
}

// A warp for a row at a time. The sums are made in a fixed order; that of the blocks by the block that ends last.
extern "C" __global__ void __launch_bounds__(1024)
softmax_cross_entropy(T* logits, const long long* labels, const T scale, const double samples, const int rows,
                      const int classes, double* figures, double* losses, long long* steps, const int kept,
                      double* parts, unsigned* ended) {
    __shared__ double loss_of[32];
    __shared__ int correct_of[32], bad_of[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    double loss = 0;
    int correct = 0, bad = rows;
    for (int row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        T* z = logits + (long long)row * classes;
        const long long label = labels[row];
        if (label < 0 || label >= classes) {
            bad = min(bad, row);
            continue;
        }
        T top = -INFINITY;
        int best = classes;
        bool nan = false;
        for (int j = lane; j < classes; j += 32) {
            const T value = z[j];
            nan |= value != value;
            if (value > top || best == classes) top = value, best = j;
        }
        for (int away = 16; away; away /= 2) {
            const T other = __shfl_xor_sync(~0u, top, away);
            const int place = __shfl_xor_sync(~0u, best, away);
            if (place < classes && (best == classes || other > top || (other == top && place < best)))
                top = other, best = place;
        }
        const T picked = z[label] - top;
        __syncwarp();
        T total = 0;
        for (int j = lane; j < classes; j += 32) {
            const T power = exp(z[j] - top);
            z[j] = power;
            total += power;
        }
        for (int away = 16; away; away /= 2) total += __shfl_xor_sync(~0u, total, away);
        const T factor = scale / total;
        for (int j = lane; j < classes; j += 32) z[j] = z[j] * factor - (j == label ? scale : 0);
        loss += __any_sync(~0u, nan) ? NAN : log(total) - picked;
        correct += best == label;
    }
    if (lane == 0) loss_of[warp] = loss, correct_of[warp] = correct, bad_of[warp] = bad;
    __syncthreads();
    if (warp) return;
    const bool one = lane < warps;
    loss = one ? loss_of[lane] : 0, correct = one ? correct_of[lane] : 0, bad = one ? bad_of[lane] : rows;
    together(loss, correct, bad);
    if (gridDim.x > 1) {
        bool last = false;
        if (lane == 0) {
            parts[3 * blockIdx.x] = loss, parts[3 * blockIdx.x + 1] = correct, parts[3 * blockIdx.x + 2] = bad;
            __threadfence();
            last = atomicAdd(ended, 1) == gridDim.x - 1;
        }
        if (!__shfl_sync(~0u, last, 0)) return;
        __threadfence();
        loss = 0, correct = 0, bad = rows;
        for (int block = lane; block < gridDim.x; block += 32) {
            const volatile double* theirs = parts + 3 * block;
            loss += theirs[0], correct += (int)theirs[1], bad = min(bad, (int)theirs[2]);
        }
        together(loss, correct, bad);
        if (lane == 0) *ended = 0;
    }
    if (lane == 0) {
        figures[0] = loss;
        figures[1] = correct;
        figures[2] = bad;
        if (losses) {  // kept by the number of the step, which only this kernel changes
            losses[*steps % kept] = bad < rows ? NAN : loss / samples;
            *steps += 1;
        }
    }
}
"""


@functools.cache
def _kernel(dtype: str) -> Any:
    limits = "#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n"
    code = f"typedef {TYPES[dtype]} T;\n{limits}{_SOURCE}"
    return cupy.RawKernel(code, "softmax_cross_entropy", options=("-std=c++17",))


@functools.cache
def _figures(device: int) -> Array:
    return cupy.zeros(FIGURES, np.float64)


@functools.cache
def _of_blocks(device: int) -> tuple[Array, Array]:
    return cupy.empty(3 * _BLOCKS, np.float64), cupy.zeros(1, np.uint32)


def start(logits: Array, labels: Array, scale: float, losses: Array = None, steps: Array = None) -> Array:
    """Starts what `psgd.kernels.layers.loss.softmax_cross_entropy` does.

    Args:
        logits: as there.
        labels: as there.
        scale: as there.
        losses: float64; element `steps[0]` modulo its size gets the summed loss times `scale`, which of a whole batch
            is its mean; NaN where a label is out of range. May be pinned host memory. None: nowhere.
        steps: (1,) int64, incremented after that.

    Returns:
        Float64 on the device, overwritten by the next call: the summed loss, hits, first row with a bad label.
    """
    figures, none = _figures(cupy.cuda.runtime.getDevice()), np.uintp(0)
    rows, classes = logits.shape
    kept = (none, none, np.int32(1)) if losses is None else (losses, steps, np.int32(losses.size))
    samples = np.float64(round(1 / scale) if scale else rows)  # divided by, as on the host
    arguments = logits, labels, logits.dtype.type(scale), samples, np.int32(rows), np.int32(classes), figures, *kept
    blocks, threads = (min(-(-rows // _WARPS), _BLOCKS), 32 * _WARPS) if logits.size >= _LARGE else (1, 1024)
    shared = _of_blocks(cupy.cuda.runtime.getDevice())
    _kernel(logits.dtype.name)((blocks,), (threads,), (*arguments, *shared))
    return figures


def loss_and_hits(logits: Array, labels: Array, scale: float) -> tuple[float, int]:
    """Waits for the result."""
    loss, correct, bad = start(logits, labels, scale).tolist()
    return (-1.0, int(bad)) if bad < len(logits) else (loss, int(correct))
