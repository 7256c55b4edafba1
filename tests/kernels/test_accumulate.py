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
