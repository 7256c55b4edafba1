"""Max pooling over windows that do not overlap; rows and columns that fill no window are left out."""

from typing import Any

import numpy as np

from psgd.kernels.array import Array, array_module


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
        max_pool_by_array(array_module(x), x, y, winner, size)


def max_pool_backward(dy: Array, winner: Array, dx: Array, size: int) -> None:
    """Writes dy to each window's winner and 0 to its other places.

    What lies outside all windows is not written: the caller zeroes dx once.
    """
    if isinstance(dy, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.max_pool_backward(dy, winner, dx, size)
    else:
        max_pool_backward_by_array(array_module(dy), dy, winner, dx, size)


def _place(x: Array, y: Array, size: int, place: int) -> Array:
    """View of one place of every window."""
    height, width = y.shape[1] * size, y.shape[2] * size
    return x[:, place // size : height : size, place % size : width : size]


def max_pool_by_array(xp: Any, x: Array, y: Array, winner: Array, size: int) -> None:
    """`max_pool` with whole-array operations, for any array library `xp`."""
    y[...] = _place(x, y, size, 0)
    winner.fill(0)
    for place in range(1, size * size):
        value = _place(x, y, size, place)
        winner[...] = xp.where(value > y, np.uint8(place), winner)
        xp.maximum(y, value, out=y)


def max_pool_backward_by_array(xp: Any, dy: Array, winner: Array, dx: Array, size: int) -> None:
    """`max_pool_backward` with whole-array operations, for any array library `xp`."""
    for place in range(size * size):
        xp.multiply(dy, winner == place, out=_place(dx, dy, size, place))
