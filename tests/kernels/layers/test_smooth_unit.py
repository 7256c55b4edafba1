"""The Gaussian error linear unit and its slope on the host and on a GPU, against the formula in float64."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import smooth_unit

HOST = smooth_unit.gelu, smooth_unit.gelu_backward
DEVICE = pytest.param(*(on_gpu(f).values[0] for f in HOST), marks=pytest.mark.gpu)


@pytest.mark.parametrize(("forward", "backward"), [HOST, DEVICE], ids=["host", "gpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_formula(forward, backward, dtype):
    x = np.linspace(-12, 12, 100_003).astype(dtype)
    exact = x.astype(np.float64)
    inner = np.tanh(np.sqrt(2 / np.pi) * (exact + 0.044715 * exact**3))
    slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * exact**2)
    near = {"rtol": 3e-6, "atol": 3e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-14}
    y = np.full_like(x, np.nan)
    forward(x, y)
    np.testing.assert_allclose(y, exact * (1 + inner) / 2, **near)
    dy = np.full_like(x, 3)
    backward(x, dy)
    np.testing.assert_allclose(dy, 3 * ((1 + inner) / 2 + exact * (1 - inner**2) / 2 * slope), **near)
