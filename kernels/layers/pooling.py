"""Max pooling over windows that do not overlap, and the mean over tokens.

Rows and columns of an image that fill no window are left out.
"""

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel


@by_device
@lazy_kernel
def max_pool(x: Array, y: Array, winner: Array, size: int) -> None:
    """Writes each window's maximum to y and its place to `winner`. Allocates nothing on the host.

    Args:
        x: (n, height, width, channels), C-contiguous.
        y: (n, height // size, width // size, channels), same dtype; overwritten.
        winner: shape of y, uint8: row x size + column within the window, the first one of equals.
        size: side of a window, 1 to 15.
    """
    samples, height, width, channels = y.shape
    for n in range(samples):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    y[n, i, j, c] = x[n, i * size, j * size, c]
                    winner[n, i, j, c] = 0
                for u in range(size):
                    for v in range(size):
                        for c in range(channels):
                            value = x[n, i * size + u, j * size + v, c]
                            if value > y[n, i, j, c]:
                                y[n, i, j, c] = value
                                winner[n, i, j, c] = u * size + v


@by_device
@lazy_kernel
def max_pool_backward(dy: Array, winner: Array, dx: Array, size: int) -> None:
    """Writes dy to each window's winner and 0 to its other places.

    What lies outside all windows is not written: the caller zeroes dx once.
    """
    samples, height, width, channels = dy.shape
    for n in range(samples):
        for i in range(height):
            for j in range(width):
                for u in range(size):
                    for v in range(size):
                        for c in range(channels):
                            value = dy[n, i, j, c]
                            if winner[n, i, j, c] != u * size + v:
                                value = dy.dtype.type(0)
                            dx[n, i * size + u, j * size + v, c] = value


@by_device
@lazy_kernel
def mean_pool(x: Array, y: Array) -> None:
    """Writes the mean over axis 1 of x to y. The sum is made in order, in the arrays' dtype.

    Args:
        x: (n, tokens, features), float32 or float64, C-contiguous.
        y: (n, features), same dtype; overwritten.
    """
    samples, tokens, features = x.shape
    count = y.dtype.type(tokens)
    for n in range(samples):
        for f in range(features):
            y[n, f] = x[n, 0, f]
        for t in range(1, tokens):
            for f in range(features):
                y[n, f] += x[n, t, f]
        for f in range(features):
            y[n, f] /= count


@by_device
@lazy_kernel
def mean_pool_backward(dy: Array, dx: Array) -> None:
    """Overwrites dx, (n, tokens, features), with dy, (n, features), divided by the number of tokens."""
    samples, tokens, features = dx.shape
    count = dy.dtype.type(tokens)
    for n in range(samples):
        for t in range(tokens):
            for f in range(features):
                dx[n, t, f] = dy[n, f] / count
