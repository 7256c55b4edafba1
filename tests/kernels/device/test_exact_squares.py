"""The exact sum of squares on a GPU has the host's digits."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.exact_squares import squares

pytestmark = pytest.mark.gpu


def made(kind, n, dtype):
    rng = np.random.default_rng(n)
    values = rng.standard_normal(n)
    if kind == "wide":
        values *= 10.0 ** (rng.uniform(-45, 19, n) if dtype == np.float32 else rng.uniform(-160, 150, n))
    if kind == "rising":
        values = np.sort(abs(values)) * 10.0 ** np.linspace(-30, 18, n)
    values[rng.random(n) < 0.1] = 0
    return values.astype(dtype)


@pytest.mark.parametrize("kind", ["normal", "wide", "rising"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "shift"), [(0, 0), (1, 0), (4099, 1), (3_000_001, 0)])
def test_digits_are_the_hosts(kind, dtype, n, shift):
    xp, values = cupy(), made(kind, n + shift, dtype)
    np.testing.assert_array_equal(squares(xp.asarray(values)[shift:]), squares(values[shift:]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_equal_ones_do_not_overflow(dtype):
    values = np.full(20_000_000, 1.9999999, dtype)
    np.testing.assert_array_equal(squares(cupy().asarray(values)), squares(values))


def test_what_is_not_finite_shows():
    xp, values = cupy(), np.ones(5000, np.float32)
    values[7] = np.inf
    np.testing.assert_array_equal(squares(xp.asarray(values))[-1], np.inf)
    values[4000] = np.nan
    assert np.isnan(squares(xp.asarray(values))[-1])
