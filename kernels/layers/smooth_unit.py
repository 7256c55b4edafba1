"""The Gaussian error linear unit in its form with tanh (Hendrycks and Gimpel 2016, as GPT-2 has it)."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel

SLOPE, CUBE = 2 * (2 / np.pi) ** 0.5, 0.044715
"""x (1 + tanh(SLOPE / 2 (x + CUBE x^3))) / 2 = x / (1 + exp(-SLOPE (x + CUBE x^3)))."""


@by_device
@lazy_kernel
def gelu(x: Array, y: Array) -> None:
    """Writes x / (1 + exp(-SLOPE (x + CUBE x^3))) to y, both flat and of one dtype."""
    kind = x.dtype.type
    one, slope, cube = kind(1), kind(SLOPE), kind(CUBE)
    for i in range(x.size):
        v = x[i]
        y[i] = v / (one + np.exp(-slope * (v + cube * v * v * v)))


@by_device
@lazy_kernel
def gelu_backward(x: Array, dy: Array) -> None:
    """Multiplies dy by the slope of `gelu` at x, in place; both flat and of one dtype."""
    kind = x.dtype.type
    one, slope, cube = kind(1), kind(SLOPE), kind(CUBE)
    three = kind(3)
    for i in range(x.size):
        v = x[i]
        share = one / (one + np.exp(-slope * (v + cube * v * v * v)))
        steep = slope * (one + three * cube * v * v)
        dy[i] *= share * (one + v * (one - share) * steep)
