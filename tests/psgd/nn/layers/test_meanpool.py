"""The mean over tokens, against NumPy, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import Run

from psgd.nn.layers.meanpool import MeanPool


@pytest.mark.parametrize("shape", [(5, 3), (1, 4), (64, 33)])
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_numpy(shape, on_gpu):
    run = Run(MeanPool(), shape, cupy() if on_gpu else np)
    y, dx = (a.get() if on_gpu else a for a in run.backward())
    host = Run(MeanPool(), shape)
    np.testing.assert_allclose(y, host.x.mean(axis=1), rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(dx, np.broadcast_to(host.dy[:, None] / shape[0], dx.shape))
