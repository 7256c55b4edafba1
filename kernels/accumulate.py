"""Weighted sums of flat arrays, NumPy's or CuPy's."""

import numpy as np

from psgd.kernels.by_device import by_device
from psgd.kernels.jit import kernel


@by_device
@kernel
def weigh(out: np.ndarray, values: np.ndarray, weight: float) -> None:
    """`out = weight * values`, in the dtype of `out`."""
    weight_ = out.dtype.type(weight)
    for i in range(out.size):
        out[i] = weight_ * values[i]


@by_device
@kernel
def add_weighted(out: np.ndarray, values: np.ndarray, weight: float) -> None:
    """`out += weight * values`, in the dtype of `out`."""
    weight_ = out.dtype.type(weight)
    for i in range(out.size):
        out[i] += weight_ * values[i]
