"""Whether a vector in GPU memory holds numbers only: one pass, without a vector of answers."""

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import THREADS, kernel

_BLOCKS = 1056
_SOURCE = """
extern "C" __global__ void finite(const T* values, unsigned* wrong, const long long n) {
    bool found = false;
    const long long stride = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += stride)
        found |= !isfinite(values[i]);
    if (found) *wrong = 1;
}
"""


def all_finite(values: Array) -> bool:
    wrong = cupy.zeros(1, np.uint32)
    kernel(_SOURCE, "finite", values.dtype.name)((_BLOCKS,), (THREADS,), (values, wrong, np.int64(values.size)))
    return not int(wrong.get()[0])
