"""The optimizer's direction against its formula, in float64 and in the dtype of the output."""

import numpy as np
import pytest

from psgd.kernels.momentum_direction import direction


@pytest.mark.parametrize("factor", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-15)])
def test_formula(factor, weight_decay, dtype, tolerance):
    rng = np.random.default_rng(3)
    grad, params, velocity = (rng.standard_normal(101).astype(dtype) for _ in range(3))
    expected = 0.25 * grad.astype(np.float64) + weight_decay * params
    if factor:
        expected += factor * velocity
    else:
        velocity = velocity[:0]
    out = np.full(101, np.nan, dtype)
    direction(out, grad, params, velocity, 0.25, weight_decay, factor, -0.1)
    np.testing.assert_allclose(out, -0.1 * expected, rtol=10 * tolerance, atol=tolerance)
    if factor:
        np.testing.assert_allclose(velocity, expected, rtol=10 * tolerance, atol=tolerance)
