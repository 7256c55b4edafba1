"""The linear layer against NumPy, on flat samples and on tokens, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import Run

from psgd.nn.linear import Linear


def oracle(run):
    (w, b), x, dy = run.params, run.x, run.dy
    y = x @ w + b
    if run.layer.relu:
        y = np.maximum(y, 0)
        dy = np.where(y > 0, dy, 0)
    rows, drows = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return y, dy @ w.T, np.einsum("ni,no->io", rows, drows), drows.sum(axis=0)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(7,), (4, 7), (1, 7), (4, 1), (2, 3, 5)])
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_numpy(shape, relu, on_gpu):
    layer = Linear(5, relu=relu)
    run = Run(layer, shape, cupy() if on_gpu else np)
    for ours, expected in zip(run.backward(), oracle(Run(layer, shape)), strict=True):
        np.testing.assert_allclose(ours.get() if on_gpu else ours, expected, rtol=1e-12, atol=1e-12)


def test_tokens_are_samples_of_their_own():
    tokens, flat = Run(Linear(5), (4, 7)), Run(Linear(5), (7,))
    flat.params = tokens.params
    y = tokens.forward()
    for i in range(len(y)):
        flat.x = tokens.x[i, :3].copy()
        np.testing.assert_allclose(y[i, :3], flat.forward(), rtol=1e-13)
