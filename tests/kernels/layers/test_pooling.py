"""Max pooling and the mean over tokens on the host and on a GPU, against the definition."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import pooling

HOST = pooling.max_pool, pooling.max_pool_backward
DEVICE = pytest.param(*(on_gpu(f).values[0] for f in HOST), marks=pytest.mark.gpu)


@pytest.mark.parametrize(("forward", "backward"), [HOST, DEVICE], ids=["host", "gpu"])
@pytest.mark.parametrize(("height", "width", "size"), [(4, 6, 2), (5, 7, 2), (7, 3, 3), (3, 3, 1), (16, 15, 15)])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maximum_and_its_first_place(forward, backward, height, width, size, ties, dtype):
    rng = np.random.default_rng(height)
    shape = (3, height, width, 4)
    x = rng.integers(-2, 2, shape) if ties else rng.permutation(np.prod(shape)).reshape(shape) - 100
    x = x.astype(dtype)
    y = np.full((3, height // size, width // size, 4), np.nan, dtype)
    winner = np.full(y.shape, 255, np.uint8)
    forward(x, y, winner, size)
    dy = rng.standard_normal(y.shape).astype(dtype)
    expected = np.zeros_like(x)
    for n, i, j, c in np.ndindex(y.shape):
        window = x[n, i * size : (i + 1) * size, j * size : (j + 1) * size, c]
        assert y[n, i, j, c] == window.max()
        first = int(window.argmax())
        assert winner[n, i, j, c] == first
        expected[n, i * size + first // size, j * size + first % size, c] = dy[n, i, j, c]
    dx = np.full_like(x, 7)
    dx[:, y.shape[1] * size :] = 0
    dx[:, :, y.shape[2] * size :] = 0
    backward(dy, winner, dx, size)
    np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("form", [pooling.mean_pool, on_gpu(pooling.mean_pool)])
@pytest.mark.parametrize("shape", [(3, 7, 5), (1, 1, 1), (2, 300, 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mean_in_order(form, shape, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    y = np.full((shape[0], shape[2]), np.nan, dtype)
    form(x, y)
    total = x[:, 0].copy()
    for token in range(1, shape[1]):
        total += x[:, token]
    np.testing.assert_array_equal(y, total / dtype(shape[1]))


@pytest.mark.parametrize("form", [pooling.mean_pool_backward, on_gpu(pooling.mean_pool_backward)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_token_has_an_equal_share(form, dtype):
    dy = np.random.default_rng(1).standard_normal((3, 5)).astype(dtype)
    dx = np.full((3, 7, 5), np.nan, dtype)
    form(dy, dx)
    np.testing.assert_array_equal(dx, np.broadcast_to(dy[:, None] / dtype(7), dx.shape))
