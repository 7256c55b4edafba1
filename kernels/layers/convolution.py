"""The two halves of a convolution beside its matrix product: unfold the windows, and fold them back.

Flat unsigned indices let the compiler vectorize the loops: no index can be negative.
"""

import numpy as np
import numpy.typing as npt

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel


def _geometry(
    x: Array, columns: Array, stride: int
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int], int]:
    """Windows, steps and run of the host's loops."""
    _, height, width, channels = x.shape
    row = width * channels
    steps = height * row, stride * row, stride * channels, row
    return columns.shape[:4], steps, columns.shape[4] * channels


@by_device
def unfold(x: Array, columns: Array, stride: int, padding: int = 0) -> None:
    """Copies every window of x into its row of `columns` (im2col). Allocates nothing on the host.

    Args:
        x: (n, height, width, channels), C-contiguous; on the host already padded.
        columns: (n, down, across, size, size, channels) of the same dtype, C-contiguous; overwritten.
        stride: pixels from one window to the next.
        padding: zeros around x that it does not have itself; on the GPU only.
    """
    _unfold(x.reshape(-1), columns.reshape(-1), *_geometry(x, columns, stride))


@by_device
def fold(columns: Array, x: Array, stride: int, padding: int = 0) -> None:
    """The adjoint of `unfold`: overwrites x with the sum of the windows, each at its place (col2im)."""
    _fold(columns.reshape(-1), x.reshape(-1), *_geometry(x, columns, stride))


@lazy_kernel
def _unfold(
    x: npt.NDArray[np.floating],
    columns: npt.NDArray[np.floating],
    windows: tuple[int, int, int, int],
    steps: tuple[int, int, int, int],
    run: int,
) -> None:
    """Copies each window's rows of `run` elements one after another into `columns` (both flat).

    `windows` counts (samples, down, across, rows of a window); `steps` are the elements of x from one sample,
    one window down, one window across and one row to the next.
    """
    sample, down, across, row = steps
    length = np.uint64(run)
    to = np.uint64(0)
    for n in range(windows[0]):
        for i in range(windows[1]):
            for j in range(windows[2]):
                for u in range(windows[3]):
                    start = np.uint64(n * sample + i * down + j * across + u * row)
                    for q in range(length):
                        columns[to + q] = x[start + q]
                    to += length


@lazy_kernel
def _fold(
    columns: npt.NDArray[np.floating],
    x: npt.NDArray[np.floating],
    windows: tuple[int, int, int, int],
    steps: tuple[int, int, int, int],
    run: int,
) -> None:
    """The adjoint of `_unfold`: x = the sum of all columns' elements at the places they were copied from."""
    sample, down, across, row = steps
    length = np.uint64(run)
    at = np.uint64(0)
    x[:] = 0
    for n in range(windows[0]):
        for i in range(windows[1]):
            for j in range(windows[2]):
                for u in range(windows[3]):
                    start = np.uint64(n * sample + i * down + j * across + u * row)
                    for q in range(length):
                        x[start + q] += columns[at + q]
                    at += length
