"""Matrix products and sums over rows, on the host by NumPy's BLAS and on the GPU by cuBLAS."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device


@by_device
def matmul(a: Array, b: Array, out: Array) -> Array:
    """Computes `out = a b` for matrices; a and b may be transposes. Returns out."""
    return np.matmul(a, b, out=out)


@by_device
def product_over_rows(a: Array, b: Array, out: Array, parts: int) -> None:
    """Computes `out = a^T b` for tall matrices.

    On the GPU each of so many equal parts of the rows, or a half or quarter of it, makes a product of its own, and
    these are added in order: one product alone has too few results to keep a GPU busy.

    Args:
        a: (rows, m), contiguous.
        b: (rows, n), contiguous.
        out: (m, n), overwritten.
        parts: a divisor of rows.
    """
    np.matmul(a.T, b, out=out)


@by_device
def sum_rows(values: Array, ones: Array, out: Array) -> None:
    """Computes `out`, (n,), as the sum of the rows of `values`, (rows, n); `ones` are at least as many ones as rows."""
    np.matmul(ones[: len(values)], values, out=out)
