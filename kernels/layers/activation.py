"""Bias, alone or with ReLU in one pass, and both gradients of the latter in one pass; ReLU alone."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel


@by_device
@lazy_kernel
def add_bias(y: Array, bias: Array) -> None:
    """Computes y += bias in place. Allocates nothing on the host (NumPy's broadcast takes a buffer).

    Args:
        y: (n, units), float32 or float64, C-contiguous.
        bias: (units,) of the same dtype.
    """
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] += bias[j]


@by_device
@lazy_kernel
def bias_relu(y: Array, bias: Array) -> None:
    """Computes y = max(y + bias, 0) in place. Allocates nothing on the host.

    Args:
        y: (n, units), float32 or float64, C-contiguous.
        bias: (units,) of the same dtype.
    """
    zero = y.dtype.type(0)
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            value = y[i, j] + bias[j]
            y[i, j] = zero if value < zero else value  # NaN stays


@by_device
@lazy_kernel
def bias_relu_backward(y: Array, dy: Array, dbias: Array) -> None:
    """Zeroes dy where the output y is not positive, in place, and overwrites dbias with the sum of its rows.

    Args:
        y: (n, units), what `bias_relu` left.
        dy: shape of y.
        dbias: (units,).
    """
    zero = y.dtype.type(0)
    dbias[:] = zero
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            value = dy[i, j] if y[i, j] > zero else zero
            dy[i, j] = value
            dbias[j] += value


@by_device
def relu_backward(y: Array, dy: Array, mask: Array) -> None:
    """Zeroes dy where the output y is not positive, in place.

    Args:
        y: of any shape, max(x, 0).
        dy: shape and dtype of y.
        mask: the same; the host overwrites it.
    """
    np.multiply(dy, np.sign(y, out=mask), out=dy)  # a mask of dy's dtype: nothing is cast
