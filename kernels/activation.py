"""Bias, alone or with ReLU in one pass, and both gradients of the latter in one pass."""

from typing import Any

import numpy as np

from psgd.kernels.array import Array, array_module


def add_bias(y: Array, bias: Array) -> None:
    """Computes y += bias in place. Allocates nothing on the host (NumPy's broadcast takes a buffer).

    Args:
        y: (n, units), float32 or float64, C-contiguous.
        bias: (units,) of the same dtype.
    """
    if isinstance(y, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.add_bias(y, bias)
    else:
        y += bias


def bias_relu(y: Array, bias: Array) -> None:
    """Computes y = max(y + bias, 0) in place. Allocates nothing on the host.

    Args:
        y: (n, units), float32 or float64, C-contiguous.
        bias: (units,) of the same dtype.
    """
    if isinstance(y, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.bias_relu(y, bias)
    else:
        bias_relu_by_array(array_module(y), y, bias)


def bias_relu_backward(y: Array, dy: Array, dbias: Array) -> None:
    """Zeroes dy where the output y is not positive, in place, and overwrites dbias with the sum of its rows.

    Args:
        y: (n, units), what `bias_relu` left.
        dy: shape of y.
        dbias: (units,).
    """
    if isinstance(y, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.bias_relu_backward(y, dy, dbias)
    else:
        bias_relu_backward_by_array(array_module(y), y, dy, dbias)


def bias_relu_by_array(xp: Any, y: Array, bias: Array) -> None:
    """`bias_relu` with whole-array operations, for any array library `xp`."""
    xp.add(y, bias, out=y)
    xp.maximum(y, 0, out=y)


def bias_relu_backward_by_array(xp: Any, y: Array, dy: Array, dbias: Array) -> None:
    """`bias_relu_backward` with whole-array operations, for any array library `xp`."""
    xp.multiply(dy, y > 0, out=dy)
    xp.sum(dy, axis=0, out=dbias)
