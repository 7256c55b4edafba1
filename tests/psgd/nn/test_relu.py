"""The rectifier: 0 has no gradient, and NaN stays."""

import numpy as np
from harness.layers import Run

from psgd.nn.relu import ReLU


def test_zero_and_nan():
    run = Run(ReLU(), (4,))
    run.x[0] = [-1, 0, 2, np.nan]
    y, dx = run.backward()
    np.testing.assert_array_equal(y[0], [0, 0, 2, np.nan])
    np.testing.assert_array_equal(dx[0], [0, 0, run.dy[0, 2], np.nan])
