"""Sums over the rows of a matrix in GPU memory, C-contiguous. Their order is fixed, so runs repeat.

Nothing here allocates once its scratch memory is large enough, so that a step can be captured as a CUDA graph.
"""

from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import THREADS, ints, kernel

_PARTS = 132
"""Into which tall sums are cut: enough blocks for a large GPU, and few enough for one block to add their results."""
_SOURCE = r"""
// out[p, c] = the sum of rows p * per and following; with y, of dy where y > 0, which is written back
extern "C" __global__ void column_sum(T* dy, const T* y, T* out, int rows, int units, int per) {
    __shared__ T sums[256];
    const int c = blockIdx.x * blockDim.x + threadIdx.x, last = min(rows, (int)(blockIdx.y + 1) * per);
    T sum = 0;
    if (c < units)
#pragma unroll 4
        for (int r = blockIdx.y * per + threadIdx.y; r < last; r += blockDim.y) {
            const long long i = (long long)r * units + c;
            T value = dy[i];
            if (y) {
                value = y[i] > 0 ? value : 0;
                dy[i] = value;
            }
            sum += value;
        }
    sums[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < units) {
        for (int k = 1; k < blockDim.y; ++k) sum += sums[k * blockDim.x + threadIdx.x];
        out[(long long)blockIdx.y * units + c] = sum;
    }
}
"""


def column_sum(values: Array, out: Array, y: Array = None) -> None:
    """Overwrites `out` with the sum over all but its axes; with y, `values` first become 0 where y is not positive."""
    units = out.size
    rows = values.size // units
    wide = min(32, 1 << (units - 1).bit_length())
    tall = THREADS // wide
    across = -(-units // wide)
    parts = min(-(-rows // (8 * tall)), _PARTS) if rows > 16 * tall else 1
    per = -(-rows // parts)
    parts = -(-rows // per)
    start = kernel(_SOURCE, "column_sum", values.dtype.name)
    to = out if parts == 1 else scratch("sums", parts * units, values.dtype)
    mask = np.uintp(0) if y is None else y
    start((across, parts), (wide, tall), (values, mask, to, *ints((rows, units, per))))
    if parts > 1:
        start((across, 1), (wide, tall), (to, np.uintp(0), out, *ints((parts, units, parts))))


_SCRATCH: dict[tuple[str, str, int], list[Array]] = {}


def scratch(name: str, n: int, dtype: Any) -> Array:
    """Memory for partial results, by name, used again by the next call on the stream.

    What was too small is kept for the graphs that were captured with it.
    """
    known = _SCRATCH.setdefault((name, str(dtype), cupy.cuda.runtime.getDevice()), [])
    if not known or known[-1].size < n:
        known.append(cupy.empty(max(n, 1 << 16), dtype))
    return known[-1][:n]
