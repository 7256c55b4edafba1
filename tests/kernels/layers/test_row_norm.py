"""Normalized rows of any width on the host and on a GPU, against the formula in float64."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import row_norm

HOST = row_norm.layer_norm, row_norm.layer_norm_backward
DEVICE = pytest.param(*(on_gpu(f).values[0] for f in HOST), marks=pytest.mark.gpu)


@pytest.mark.parametrize(("forward", "backward"), [HOST, DEVICE], ids=["host", "gpu"])
@pytest.mark.parametrize(("n", "width"), [(1, 1), (3, 7), (70, 8), (5, 33), (9, 128), (2, 1000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_formula(forward, backward, n, width, dtype):
    rng = np.random.default_rng(width)
    x, dy = (rng.standard_normal((n, width)).astype(dtype) for _ in range(2))
    factor, summand = (rng.standard_normal(width).astype(dtype) for _ in range(2))
    y, mean, scale = np.full_like(x, np.nan), np.full(n, np.nan, dtype), np.full(n, np.nan, dtype)
    forward(x, factor, summand, y, mean, scale, 1e-3)
    exact, slope = x.astype(np.float64), dy.astype(np.float64)
    away = exact - exact.mean(1, keepdims=True)
    by = 1 / np.sqrt((away**2).mean(1, keepdims=True) + 1e-3)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-11}
    np.testing.assert_allclose(y, away * by * factor + summand, **near)
    dfactor, dsummand = (np.full(width, np.nan, dtype) for _ in range(2))
    backward(x, dy, factor, mean, scale, dfactor, dsummand)
    np.testing.assert_allclose(dfactor, (slope * away * by).sum(0), **near)
    np.testing.assert_allclose(dsummand, slope.sum(0), **near)
    along = slope * factor
    unit = away * by
    dx = by * (along - along.mean(1, keepdims=True) - unit * (along * unit).mean(1, keepdims=True))
    np.testing.assert_allclose(dy, dx, **near)
