"""Rows of a table by number, and the sum of their gradients; numbers are whole, in the dtype of activations."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.errors import DataError
from psgd.kernels.jit import lazy_kernel


def embed(tokens: Array, table: Array, y: Array) -> None:
    """Writes row `tokens[i]` of the table to y[i]. On a GPU, which is not waited for, a wrong token's row is NaN.

    Args:
        tokens: (n,), whole numbers in the dtype of y.
        table: (vocabulary, width), C-contiguous.
        y: (n, width), overwritten.

    Raises:
        DataError: a token that the table has no row for.
    """
    bad = look_up(tokens, table, y)
    if bad is not None and bad >= 0:
        raise DataError(f"token {tokens[bad]} at place {bad} of the batch is not in 0..{len(table) - 1}")


@by_device
@lazy_kernel
def look_up(tokens: Array, table: Array, y: Array) -> int:
    """Does what `embed` says, but returns the place of a token out of range, or -1."""
    for i in range(y.shape[0]):
        row = int(np.rint(tokens[i]))
        if row < 0 or row >= table.shape[0]:
            return i
        for j in range(y.shape[1]):
            y[i, j] = table[row, j]
    return -1


@by_device
@lazy_kernel
def embed_backward(tokens: Array, dy: Array, dtable: Array) -> None:
    """Overwrites dtable, (vocabulary, width), with the sum of the rows of dy, (n, width), by token, in order.

    Tokens that the table has no row for add to none: of a part of a table, other ranks have theirs.
    """
    dtable[:] = dtable.dtype.type(0)
    for i in range(dy.shape[0]):
        row = int(np.rint(tokens[i]))
        if 0 <= row < dtable.shape[0]:
            for j in range(dy.shape[1]):
                dtable[row, j] += dy[i, j]
