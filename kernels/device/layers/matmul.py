"""Matrix products and sums over rows in GPU memory."""

from psgd.kernels.array import Array
from psgd.kernels.device import blas
from psgd.kernels.device.column_sum import column_sum, scratch

_ROWS = 128
"""A product over rows is cut in two for as long as a part has more of them."""


def matmul(a: Array, b: Array, out: Array) -> Array:
    return blas.matmul(a, b, out)


def product_over_rows(a: Array, b: Array, out: Array, parts: int) -> None:
    rows = len(a) // parts
    while rows % 2 == 0 and rows > _ROWS:
        rows, parts = rows // 2, 2 * parts
    products = scratch("products", parts * out.size, out.dtype).reshape(parts, *out.shape)
    blas.matmul_each(a.reshape(parts, rows, -1), b.reshape(parts, rows, -1), products)
    column_sum(products, out)


def sum_rows(values: Array, ones: Array, out: Array) -> None:
    column_sum(values, out)
