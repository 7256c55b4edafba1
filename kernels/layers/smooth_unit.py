"""The Gaussian error linear unit in its form with tanh (Hendrycks and Gimpel 2016, as GPT-2 has it)."""

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device


@by_device
def gelu(x: Array, y: Array) -> None:
    """Writes x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 to y, both flat and of one dtype."""
    from psgd.kernels.layers import exponentials

    exponentials.gelu(x, y)


@by_device
def gelu_backward(x: Array, dy: Array) -> None:
    """Multiplies dy by the slope of `gelu` at x, in place; both flat and of one dtype."""
    from psgd.kernels.layers import exponentials

    exponentials.gelu_backward(x, dy)
