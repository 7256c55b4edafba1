"""Bias and ReLU, fused, against float64 NumPy."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import activation


@pytest.mark.parametrize("form", [activation.add_bias, on_gpu(activation.add_bias)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_add_bias(form, dtype):
    rng = np.random.default_rng(0)
    y, bias = rng.standard_normal((7, 33)).astype(dtype), rng.standard_normal(33).astype(dtype)
    expected = y + bias
    form(y, bias)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("form", [activation.bias_relu, on_gpu(activation.bias_relu)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_forward(form, dtype):
    rng = np.random.default_rng(0)
    y, bias = rng.standard_normal((7, 33)).astype(dtype), rng.standard_normal(33).astype(dtype)
    y[0, 0], bias[0] = -1, 1
    y[1, 1] = np.nan
    expected = np.maximum(y + bias, 0)
    form(y, bias)
    np.testing.assert_array_equal(y, expected)
    assert np.isnan(y[1, 1])


@pytest.mark.parametrize("form", [activation.bias_relu_backward, on_gpu(activation.bias_relu_backward)])
@pytest.mark.parametrize("shape", [(65, 33), (1, 1), (5003, 16), (70, 300)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_backward(form, shape, dtype):
    rng = np.random.default_rng(1)
    y = np.maximum(rng.standard_normal(shape), 0).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    dbias = np.full(shape[1], 9, dtype)
    expected = np.where(y > 0, dy, 0)
    form(y, dy, dbias)
    np.testing.assert_array_equal(dy, expected)
    np.testing.assert_allclose(dbias, expected.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("form", [activation.relu_backward, on_gpu(activation.relu_backward)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relu_backward(form, dtype):
    rng = np.random.default_rng(2)
    y = np.maximum(rng.standard_normal((5, 7, 3)), 0).astype(dtype)
    dy = rng.standard_normal(y.shape).astype(dtype)
    expected = np.where(y > 0, dy, 0)
    form(y, dy, np.full_like(y, np.nan))
    np.testing.assert_array_equal(dy, expected)
