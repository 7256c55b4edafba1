"""The exponential of float32 in vector instructions: to 2 units in the last place, and what lies beyond its range."""

import numpy as np
import pytest

from psgd.kernels.jit import kernel
from psgd.kernels.layers import exponentials


@kernel
def exp_of(x, y):
    for i in range(x.size):
        y[i] = exponentials.exp(x[i])


def exp(x, dtype):
    x = np.asarray(x, dtype)
    y = np.empty_like(x)
    exp_of(x, y)
    return y


def test_float32():
    x = np.concatenate([np.linspace(-87, 88, 2_000_001), np.linspace(-1, 1, 200_001)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exp(x, np.float32) - exact) / exact) < 2 * 2.0**-23


def test_float64():
    x = np.linspace(-700, 700, 100_001)
    np.testing.assert_allclose(exp(x, np.float64), np.exp(x), rtol=1e-15)


def test_beyond_the_range_of_float32():
    np.testing.assert_array_equal(exp([-np.inf, -1e9], np.float32), exp([-87, -87], np.float32))
    np.testing.assert_array_equal(exp([np.inf, 1e9], np.float32), exp([88, 88], np.float32))
    assert np.isnan(exp([np.nan], np.float32)[0])


@pytest.mark.parametrize(("tokens", "block"), [(1, 1), (2, 2), (7, 3), (33, 64), (128, 64)])
def test_shares_are_softmax_up_to_the_diagonal(tokens, block):
    scores = np.random.default_rng(tokens).standard_normal((2, tokens, tokens)).astype(np.float32) * 30
    shares = scores.copy()
    exponentials.causal_softmax(shares, 0.5, block)
    for matrix, expected in zip(shares, scores.astype(np.float64), strict=True):
        for i in range(tokens):
            power = np.exp((expected[i, : i + 1] - expected[i, : i + 1].max()) * 0.5)
            np.testing.assert_allclose(matrix[i, : i + 1], power / power.sum(), rtol=1e-5, atol=1e-30)
            end = (i // block + 1) * block
            assert (matrix[i, i + 1 : end] == 0).all()
            np.testing.assert_array_equal(matrix[i, end:], expected[i, end:])
