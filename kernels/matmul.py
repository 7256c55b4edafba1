"""Matrix products and sums over rows, on the host by NumPy's BLAS and on the GPU by cuBLAS."""

from typing import cast

import numpy as np

from psgd.kernels.array import Array

_ROWS = 128


def matmul(a: Array, b: Array, out: Array) -> Array:
    """Computes `out = a b` for matrices; a and b may be transposes. Returns out."""
    if isinstance(a, np.ndarray):
        return cast(Array, np.matmul(a, b, out=out))
    from psgd.kernels.device import blas

    return blas.matmul(a, b, out)


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
    if isinstance(a, np.ndarray):
        np.matmul(a.T, b, out=out)
        return
    from psgd.kernels.device import blas, layers

    rows = len(a) // parts
    while rows % 2 == 0 and rows > _ROWS:
        rows, parts = rows // 2, 2 * parts
    products = layers.scratch("products", parts * out.size, out.dtype).reshape(parts, *out.shape)
    blas.matmul_each(a.reshape(parts, rows, -1), b.reshape(parts, rows, -1), products)
    layers.column_sum(products, out)


def sum_rows(values: Array, ones: Array, out: Array) -> None:
    """Computes `out`, (n,), as the sum of the rows of `values`, (rows, n); `ones` are at least as many ones as rows."""
    if isinstance(values, np.ndarray):
        np.matmul(ones[: len(values)], values, out=out)
        return
    from psgd.kernels.device import layers

    layers.column_sum(values, out)
