"""The convolution against its definition, window by window, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import Run

from psgd.nn.conv2d import Conv2D


def oracle(run):
    (w, b), dy, layer = run.params, run.dy, run.layer
    p, s, size = layer.padding, layer.stride, layer.size
    x = np.pad(run.x, ((0, 0), (p, p), (p, p), (0, 0)))
    y, dx, dw = np.empty_like(dy), np.zeros_like(x), np.zeros_like(w)
    for n, i, j in np.ndindex(dy.shape[:3]):
        window = (n, slice(i * s, i * s + size), slice(j * s, j * s + size))
        y[n, i, j] = np.tensordot(x[window], w, 3) + b
        dx[window] += w @ dy[n, i, j]
        dw += x[window][..., None] * dy[n, i, j]
    end = -p or None
    return y, dx[:, p:end, p:end], dw, dy.sum(axis=(0, 1, 2))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Conv2D(4, 3), (7, 5, 3)),
        (Conv2D(4, 3, padding=1), (5, 6, 2)),
        (Conv2D(2, 3, stride=2, padding=1), (7, 8, 3)),
        (Conv2D(3, 2, stride=3), (8, 7, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_numpy(layer, shape, on_gpu):
    run = Run(layer, shape, cupy() if on_gpu else np)
    for ours, expected in zip(run.backward(), oracle(Run(layer, shape)), strict=True):
        np.testing.assert_allclose(ours.get() if on_gpu else ours, expected, rtol=1e-12, atol=1e-12)
