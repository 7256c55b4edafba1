"""Unfold against the definition, and fold as its adjoint, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import convolution as c

CASES = [  # n, height, width, channels, size, stride
    (1, 1, 1, 1, 1, 1),
    (2, 5, 4, 3, 3, 1),
    (3, 9, 7, 2, 3, 2),
    (2, 8, 11, 5, 2, 3),
    (1, 6, 6, 1, 6, 1),
    (4, 7, 10, 1, 5, 4),
]


def arrays(case, dtype):
    n, height, width, channels, size, stride = case
    down, across = (height - size) // stride + 1, (width - size) // stride + 1
    x = np.arange(n * height * width * channels, dtype=dtype).reshape(n, height, width, channels) + 1
    return x, np.full((n, down, across, size, size, channels), np.nan, dtype)


@pytest.mark.parametrize("form", [c.unfold, on_gpu(c.unfold)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unfold(form, case, dtype):
    x, columns = arrays(case, dtype)
    size, stride = case[-2:]
    form(x, columns, stride)
    for i, j in np.ndindex(columns.shape[1:3]):
        window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
        np.testing.assert_array_equal(columns[:, i, j], window)


@pytest.mark.parametrize("form", [c.fold, on_gpu(c.fold)])
@pytest.mark.parametrize("case", CASES)
def test_fold_adds_every_window_at_its_place(form, case):
    x, columns = arrays(case, np.float64)
    size, stride = case[-2:]
    columns[...] = np.random.default_rng(0).standard_normal(columns.shape)
    expected = np.zeros_like(x)
    for i, j in np.ndindex(columns.shape[1:3]):
        expected[:, i * stride : i * stride + size, j * stride : j * stride + size] += columns[:, i, j]
    form(columns, x, stride)
    np.testing.assert_allclose(x, expected, rtol=1e-14, atol=1e-14)
