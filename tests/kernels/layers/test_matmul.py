"""Products and sums over rows, on the host and on a GPU, against float64 NumPy."""

import numpy as np
import pytest
from harness.device import cupy, on_gpu

from psgd.kernels.layers.matmul import matmul, product_over_rows, sum_rows


def sides():
    return [pytest.param(np, id="host"), pytest.param(None, id="gpu", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("xp", sides())
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 64, 10), (64, 5, 1), (1, 9, 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmul(xp, turned, sizes, dtype):
    xp = xp or cupy()
    m, k, n = sizes
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    ours = [
        xp.asarray(np.ascontiguousarray(x.T), dtype).T if name in turned else xp.asarray(x, dtype)
        for name, x in (("a", a), ("b", b))
    ]
    out = xp.full((m, n), np.nan, dtype)
    assert matmul(*ours, out) is out
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(np.asarray(out.tolist()), a @ b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", [product_over_rows, on_gpu(product_over_rows)])
@pytest.mark.parametrize(("parts", "rows", "m", "n"), [(1, 1, 1, 1), (3, 5, 9, 16), (64, 49, 144, 32)])
def test_product_over_rows(form, parts, rows, m, n):
    rng = np.random.default_rng(rows)
    a, b = (rng.standard_normal((parts * rows, width), np.float32) for width in (m, n))
    out = np.full((m, n), np.nan, np.float32)
    form(a, b, out, parts)
    np.testing.assert_allclose(out, a.T.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", [sum_rows, on_gpu(sum_rows)])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (64, 10), (5001, 16), (70, 300), (20000, 3)])
def test_sum_rows(form, rows, n):
    values = np.random.default_rng(rows).standard_normal((rows, n), np.float32)
    out = np.full(n, np.nan, np.float32)
    form(values, np.ones(rows, np.float32), out)
    np.testing.assert_allclose(out, values.sum(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-3)
