"""The Gaussian error linear unit at the ends of its range."""

import numpy as np
import pytest
from harness.layers import Run

from psgd.nn.layers.gelu import GELU


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_from_0_it_is_0_or_its_input(dtype):
    run = Run(GELU(), (4,), dtype=dtype)
    run.x[:] = [-1e4, -30, 30, 1e4]
    y, dx = run.backward()
    np.testing.assert_allclose(y, np.broadcast_to(np.array([0, 0, 30, 1e4], dtype), y.shape), atol=1e-20)
    np.testing.assert_allclose(dx, run.dy * np.array([0, 0, 1, 1], dtype), atol=1e-20)


def test_nan_stays():
    run = Run(GELU(), (1,))
    run.x[:] = np.nan
    assert np.isnan(run.forward()).all()
