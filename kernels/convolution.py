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


def unfold(x: Array, columns: Array, stride: int, padding: int = 0) -> None:
    """Copies every window of x into its row of `columns` (im2col). Allocates nothing on the host.

    Args:
        x: (n, height, width, channels), C-contiguous; on the host already padded.
        columns: (n, down, across, size, size, channels) of the same dtype, C-contiguous; overwritten.
        stride: pixels from one window to the next.
        padding: zeros around x that it does not have itself; on the GPU only.
    """
    if isinstance(x, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.unfold(x.reshape(-1), columns.reshape(-1), *_geometry(x, columns, stride))
    else:
        from psgd.kernels.device import images

        images.unfold(x, columns, stride, padding)


def fold(columns: Array, x: Array, stride: int, padding: int = 0) -> None:
    """The adjoint of `unfold`: overwrites x with the sum of the windows, each at its place (col2im)."""
    if isinstance(x, np.ndarray):
        from psgd.kernels import layers_host

        layers_host.fold(columns.reshape(-1), x.reshape(-1), *_geometry(x, columns, stride))
    else:
        from psgd.kernels.device import images

        images.fold(columns, x, stride, padding)
