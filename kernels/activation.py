"""Bias, alone or with ReLU in one pass, and both gradients of the latter in one pass."""

import numpy as np

from psgd.kernels.array import Array


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
        from psgd.kernels.device import layers

        layers.add_bias(y, bias)


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
        from psgd.kernels.device import layers

        layers.bias_relu(y, bias)


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
        from psgd.kernels.device import layers

        layers.bias_relu_backward(y, dy, dbias)
