"""Max pooling over windows that do not overlap; rows and columns that fill no window are left out."""

import numpy as np

from psgd.kernels.array import Array


def max_pool(x: Array, y: Array, winner: Array, size: int) -> None:
    """Writes each window's maximum to y and its place to `winner`. Allocates nothing on the host.

    Args:
        x: (n, height, width, channels), C-contiguous.
        y: (n, height // size, width // size, channels), same dtype; overwritten.
        winner: shape of y, uint8: row x size + column within the window, the first one of equals.
        size: side of a window, 1 to 15.
    """
    if isinstance(x, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.max_pool(x, y, winner, size)
    else:
        from psgd.kernels.device import images

        images.max_pool(x, y, winner, size)


def max_pool_backward(dy: Array, winner: Array, dx: Array, size: int) -> None:
    """Writes dy to each window's winner and 0 to its other places.

    What lies outside all windows is not written: the caller zeroes dx once.
    """
    if isinstance(dy, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.max_pool_backward(dy, winner, dx, size)
    else:
        from psgd.kernels.device import images

        images.max_pool_backward(dy, winner, dx, size)
