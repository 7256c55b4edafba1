"""The residual connection: its names, its buffers, and its gradient against NumPy on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import Run

from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Transpose
from psgd.nn.residual import Residual

ACROSS = Residual((Transpose(), Linear(5), Transpose()))
WITHIN = Residual((Linear(4, relu=True), Linear(3)))


def oracle(run):
    x, dy = run.x, run.dy
    if run.layer is ACROSS:  # w[s, t]: from token s to token t
        w, b = run.params
        y = x + np.einsum("nsf,st->ntf", x, w) + b[:, None]
        return y, dy + np.einsum("ntf,st->nsf", dy, w), np.einsum("nsf,ntf->st", x, dy), dy.sum(axis=(0, 2))
    w, b, v, c = run.params
    h = np.maximum(x @ w + b, 0)
    dh = np.where(h > 0, dy @ v.T, 0)
    over = "nti,nto->io"
    grads = np.einsum(over, x, dh), dh.sum(axis=(0, 1)), np.einsum(over, h, dy), dy.sum(axis=(0, 1))
    return x + h @ v + c, dy + dh @ w.T, *grads


@pytest.mark.parametrize("layer", [ACROSS, WITHIN], ids=["across", "within"])
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_numpy(layer, on_gpu):
    run = Run(layer, (5, 3), cupy() if on_gpu else np)
    for ours, expected in zip(run.backward(), oracle(Run(layer, (5, 3))), strict=True):
        np.testing.assert_allclose(ours.get() if on_gpu else ours, expected, rtol=1e-12, atol=1e-12)


def test_parameters_have_the_inner_layers_names_and_first_values():
    specs = Residual((Linear(3), ReLU(), WITHIN, Linear(3))).weights((5, 3))
    assert [spec.name for spec in specs] == [
        "linear1.weight", "linear1.bias",
        "residual1.linear1.weight", "residual1.linear1.bias", "residual1.linear2.weight", "residual1.linear2.bias",
        "linear2.weight", "linear2.bias",
    ]  # fmt: skip
    assert [spec.initializer.init for spec in specs[::2]] == ["he", "he", "xavier", "xavier"]


def test_the_input_stays_and_no_buffer_is_made_for_an_unwanted_gradient():
    run = Run(WITHIN, (5, 3), wants_dx=False)
    kept = run.x.copy()
    run.backward()
    np.testing.assert_array_equal(run.x, kept)
    assert run.state.dx is None
    assert run.state.branch.forwards[0][1].dx is None
    assert run.state.branch.forwards[1][1].dx is not None
