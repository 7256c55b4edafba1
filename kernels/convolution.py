"""The two halves of a convolution beside its matrix product: unfold the windows, and fold them back."""

import numpy as np

from psgd.kernels.array import Array


def _geometry(
    x: Array, columns: Array, stride: int
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int], int]:
    """Windows, steps and run of the host kernels."""
    _, height, width, channels = x.shape
    row = width * channels
    steps = height * row, stride * row, stride * channels, row
    return columns.shape[:4], steps, columns.shape[4] * channels


def unfold(x: Array, columns: Array, stride: int) -> None:
    """Copies every window of x into its row of `columns` (im2col). Allocates nothing on the host.

    Args:
        x: (n, height, width, channels), C-contiguous, already padded.
        columns: (n, down, across, size, size, channels) of the same dtype, C-contiguous; overwritten.
        stride: pixels from one window to the next.
    """
    if isinstance(x, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.unfold(x.reshape(-1), columns.reshape(-1), *_geometry(x, columns, stride))
    else:
        unfold_by_array(x, columns, stride)


def fold(columns: Array, x: Array, stride: int) -> None:
    """The adjoint of `unfold`: overwrites x with the sum of the windows, each at its place (col2im)."""
    if isinstance(x, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.fold(columns.reshape(-1), x.reshape(-1), *_geometry(x, columns, stride))
    else:
        fold_by_array(columns, x, stride)


def _shifted(x: Array, columns: Array, stride: int, u: int, v: int) -> Array:
    """View of the element (u, v) of every window."""
    down, across = columns.shape[1:3]
    return x[:, u : u + stride * (down - 1) + 1 : stride, v : v + stride * (across - 1) + 1 : stride]


def unfold_by_array(x: Array, columns: Array, stride: int) -> None:
    """`unfold` with whole-array operations, for any array library."""
    size = columns.shape[3]
    for u in range(size):
        for v in range(size):
            columns[:, :, :, u, v] = _shifted(x, columns, stride, u, v)


def fold_by_array(columns: Array, x: Array, stride: int) -> None:
    """`fold` with whole-array operations, for any array library."""
    size = columns.shape[3]
    x.fill(0)
    for u in range(size):
        for v in range(size):
            place = _shifted(x, columns, stride, u, v)
            place += columns[:, :, :, u, v]
