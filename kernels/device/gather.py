"""Rows of a dataset in GPU memory, gathered and normalized in one pass: (value - mean) * scale."""

import functools
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import OPTIONS, TYPES

_INPUTS = {**TYPES, "uint8": "unsigned char"}
_SOURCE = r"""
// Row i of the batch is sample rows[i]; with `steps`, rows are slot *steps % slots of a ring; without rows, first + i.
extern "C" __global__ void gather(const X* x, const long long* y, const long long* rows, const long long* steps,
                                  const int slots, const int slot, const long long first, const A mean, const A scale,
                                  T* x_out, long long* y_out, const int d, const int labels) {
    __shared__ long long shared;
    const int i = blockIdx.x;
    if (threadIdx.x == 0) {  // once a block, for rows may lie behind the bus
        if (steps) rows += *steps % slots * slot;
        shared = rows ? rows[i] : first + i;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < labels; j += blockDim.x) y_out[(long long)i * labels + j] = y[shared * labels + j];
    const X* from = x + shared * d;
    T* to = x_out + (long long)i * d;
    for (int j = threadIdx.x; j < d; j += blockDim.x) to[j] = (T)(((A)from[j] - mean) * scale);
}
"""


@functools.cache
def _kernel(source: str, out: str, arithmetic: str) -> Any:
    types = {"X": _INPUTS[source], "T": TYPES[out], "A": TYPES[arithmetic]}
    code = "".join(f"typedef {kind} {name};\n" for name, kind in types.items()) + _SOURCE
    return cupy.RawKernel(code, "gather", options=OPTIONS)


def gather(
    x: Array,
    y: Array,
    rows: Array | int,
    statistics: np.ndarray,
    x_out: Array,
    y_out: Array,
    steps: Array = None,
) -> None:
    """Starts writing x_out[i] = (x[rows[i]] - mean) * scale and y_out[i] = y[rows[i]].

    Args:
        x: (n, d), uint8, float32 or float64.
        y: (n,) or (n, tokens), int64.
        rows: (m,) int64, in GPU or pinned memory, all of them in range; with `steps` (slots, batch), of which row
            `steps[0] % slots` is taken; or the first of m rows that follow each other.
        statistics: (2,) on the host, mean and scale; its dtype is the precision of the arithmetic.
        x_out: (m, d), float32 or float64.
        y_out: (m,) or (m, tokens), int64.
        steps: (1,) int64, read when the kernel runs.
    """
    none = np.uintp(0)
    slots, slot = (1, 0) if isinstance(rows, int) or steps is None else rows.shape
    where = (none, none) if isinstance(rows, int) else (rows, none if steps is None else steps)
    m, d = x_out.shape
    kind = statistics.dtype
    kernel = _kernel(x.dtype.name, x_out.dtype.name, kind.name)
    sizes = np.int32(slots), np.int32(slot), np.int64(rows if isinstance(rows, int) else 0)
    numbers = kind.type(statistics[0]), kind.type(statistics[1])
    columns = np.int32(d), np.int32(y_out.size // m)
    kernel((m,), (256,), (x, y, *where, *sizes, *numbers, x_out, y_out, *columns))
