"""Products by cuBLAS against NumPy's in float64."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def matrix(rows, columns, dtype, turned):
    values = np.random.default_rng(rows * 31 + columns).normal(size=(columns, rows) if turned else (rows, columns))
    values = values.astype(dtype)
    return values.T if turned else values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (64, 257, 33)])
def test_matrices_and_their_transposes(dtype, turned, shape):
    xp = cupy()
    from psgd.kernels.device import blas

    m, k, n = shape
    a, b = matrix(m, k, dtype, turned[0]), matrix(k, n, dtype, turned[1])
    there = [xp.asarray(x.T).T if t else xp.asarray(x) for x, t in zip((a, b), turned, strict=True)]
    out = xp.full((m, n), np.nan, dtype)
    assert blas.matmul(*there, out) is out
    bound = 4 * k * np.finfo(dtype).eps
    np.testing.assert_allclose(out.get(), a.astype(np.float64) @ b.astype(np.float64), rtol=bound, atol=16 * bound)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_small_products_of_transposes(dtype):
    xp = cupy()
    from psgd.kernels.device import blas

    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=(6, 9, columns)).astype(dtype) for columns in (4, 5))
    out = xp.full((6, 4, 5), np.nan, dtype)
    blas.matmul_each(xp.asarray(a), xp.asarray(b), out)
    wanted = a.astype(np.float64).transpose(0, 2, 1) @ b.astype(np.float64)
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_parts_of_larger_arrays(dtype):
    xp = cupy()
    from psgd.kernels.device import blas

    rng = np.random.default_rng(5)
    a, b = (rng.normal(size=(3, 7, 2, 4)).astype(dtype) for _ in range(2))
    out = xp.full((3, 2, 7, 7), np.nan, dtype)
    one, other = (xp.asarray(each)[:, :, 1] for each in (a, b))
    blas.matmul_strided(one, other.transpose(0, 2, 1), out[:, 1])
    wanted = a[:, :, 1].astype(np.float64) @ b[:, :, 1].astype(np.float64).transpose(0, 2, 1)
    np.testing.assert_allclose(out[:, 1].get(), wanted, rtol=1e-4, atol=1e-5)
    assert xp.isnan(out[:, 0]).all()
    back = xp.full((3, 7, 2, 4), np.nan, dtype)
    blas.matmul_strided(out[:, 1].transpose(0, 2, 1), other, back[:, :, 1])
    wanted = wanted.transpose(0, 2, 1) @ b[:, :, 1].astype(np.float64)
    np.testing.assert_allclose(back[:, :, 1].get(), wanted, rtol=1e-3, atol=1e-4)
    assert xp.isnan(back[:, :, 0]).all()


def test_a_matrix_with_gaps_is_refused():
    xp = cupy()
    from psgd.kernels.device import blas
    from psgd.kernels.errors import UsageError

    x = xp.zeros((4, 8), np.float32)[:, ::2]
    with pytest.raises(UsageError, match="contiguous or a transpose"):
        blas.matmul(x, xp.zeros((4, 2), np.float32), xp.zeros((4, 2), np.float32))
