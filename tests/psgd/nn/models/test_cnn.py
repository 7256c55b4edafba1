import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.models import build


def convolve(x, w, b):
    """3 x 3 with padding 1; x is (n, h, w, c), the weight's rows are (3, 3, c) in one."""
    n, height, width, c = x.shape
    padded = np.zeros((n, height + 2, width + 2, c))
    padded[:, 1:-1, 1:-1] = x
    patches = np.stack([padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=3)
    return patches.reshape(n, height, width, 9 * c) @ w.reshape(9 * c, -1) + b


def pool(x):
    n, height, width, c = x.shape
    return x[:, : height // 2 * 2, : width // 2 * 2].reshape(n, height // 2, 2, width // 2, 2, c).max((2, 4))


def test_it_is_two_convolutions_and_two_linear_layers():
    model = build("cnn", (2, 9, 6), 3, np.float64, hidden=7)
    rng = np.random.default_rng(1)
    params = rng.normal(size=model.layout.size) * 0.3
    model.bind(params, np.zeros_like(params))
    w, b, v, c, p, q, r, s = model.layout.views(params).values()
    x, y = rng.normal(size=(4, 2, 9, 6)), np.array([0, 1, 2, 0])
    right, loss = model.evaluate(model.context(4), x, y)
    h = np.maximum(pool(convolve(x.transpose(0, 2, 3, 1), w, b)), 0)
    h = np.maximum(pool(convolve(h, v, c)), 0).reshape(4, -1)
    z = np.maximum(h @ p + q, 0) @ r + s
    assert right == (z.argmax(1) == y).sum()
    np.testing.assert_allclose(loss, (np.log(np.exp(z).sum(1)) - z[range(4), y]).sum(), rtol=1e-10)


@pytest.mark.parametrize("shape", [(7,), (5, 5), (1, 3, 8), (1, 8, 3)])
def test_what_is_no_image_or_too_small_is_refused(shape):
    with pytest.raises(UsageError, match="model cnn needs images"):
        build("cnn", shape, 3)
