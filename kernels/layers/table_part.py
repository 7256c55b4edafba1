"""Rows by number of a table of which this rank has a range of rows: zeros where another rank has the row."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.errors import DataError
from psgd.kernels.jit import lazy_kernel


def embed_part(tokens: Array, part: Array, y: Array, first: int, vocabulary: int) -> None:
    """Writes row `tokens[i]` of the whole table to y[i] where it is in the part, else zeros.

    On a GPU, which is not waited for, a wrong token's row is NaN.

    Args:
        tokens: (n,), numbers in the whole table less `first`, whole, in the dtype of y.
        part: (rows, width), C-contiguous: those of the table from `first` on.
        y: (n, width), overwritten.
        first: the whole table's row with which the part begins.
        vocabulary: rows of the whole table.

    Raises:
        DataError: a token that the whole table has no row for.
    """
    bad = look_up_part(tokens, part, y, first, vocabulary)
    if bad is not None and bad >= 0:
        raise DataError(f"token {tokens[bad] + first} at place {bad} of the batch is not in 0..{vocabulary - 1}")


@by_device
@lazy_kernel
def look_up_part(tokens: Array, part: Array, y: Array, first: int, vocabulary: int) -> int:
    """Does what `embed_part` says, but returns the place of a token out of range, or -1."""
    zero = y.dtype.type(0)
    for i in range(y.shape[0]):
        row = int(np.rint(tokens[i]))
        if row < -first or row >= vocabulary - first:
            return i
        if 0 <= row < part.shape[0]:
            for j in range(y.shape[1]):
                y[i, j] = part[row, j]
        else:
            for j in range(y.shape[1]):
                y[i, j] = zero
    return -1
