import numpy as np
import pytest

from psgd.kernels import accumulate


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 7, 63, 64, 65, 1023, 4097])
def test_weighted_sum(n, dtype):
    rng = np.random.default_rng(n)
    parts = rng.integers(-50, 50, size=(3, n)).astype(dtype)  # small integers: every sum is exact
    guarded = np.full(n + 2, 99, dtype)
    out = guarded[1:-1]
    accumulate.weigh(out, parts[0], 2.0)
    accumulate.add_weighted(out, parts[1], 3.0)
    accumulate.add_weighted(out, parts[2], 0.5)
    np.testing.assert_array_equal(out, 2 * parts[0] + 3 * parts[1] + 0.5 * parts[2])
    assert guarded[0] == guarded[-1] == 99
    assert out.dtype == dtype


@pytest.mark.parametrize("n", [0, 1, 65, 4097])
def test_sum_of_squares_is_exact_on_integers(n):
    values = np.random.default_rng(n).integers(-1000, 1000, n).astype(np.float32)
    assert accumulate.sum_of_squares(values) == float(np.sum(values.astype(np.float64) ** 2))


def test_squares_are_taken_in_float64():
    assert accumulate.sum_of_squares(np.full(3, 1e30, np.float32)) == pytest.approx(3e60, rel=1e-6)
    assert accumulate.sum_of_squares(np.full(1000, 1e-25, np.float32)) == pytest.approx(1e-47, rel=1e-6)
