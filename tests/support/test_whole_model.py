"""The sequential program that cuts and sums as ranks do, against the model's own gradient."""

import numpy as np
import pytest
from harness.whole_model import WholeModel

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU

LAYERS = (Linear(13), ReLU(), Linear(11), ReLU(), Linear(4))
N = 10


def batch(worker, clock):
    rng = np.random.default_rng([worker, clock])
    return rng.standard_normal((N, 7)).astype(np.float32), rng.integers(0, 4, N)


def by_model(params, sizes):
    """The same by the model: one part of the batch after the other, its gradient added."""
    model = Model(LAYERS, (7,))
    grads = np.zeros_like(params)
    model.bind(params, grads)
    (x, y), at, loss = batch(0, 0), 0, 0.0
    for size in sizes:
        part = slice(at, at + size)
        ctx = model.context(size)
        loss += model.gradient(ctx, x[part], y[part], batch_size=N, accumulate=at > 0)
        at += size
    return grads, loss


@pytest.mark.parametrize("sizes", [(10,), (3, 3, 3, 1), (4, 6)])
def test_microbatches_have_the_bits_of_the_models_own(sizes):
    whole, params = WholeModel(LAYERS, (7,)), Model(LAYERS, (7,)).init(3)
    assert whole.layout.parameters == Model(LAYERS, (7,)).layout.parameters
    grads = whole.gradient_of(batch, lambda n: sizes)(params, 0, 0)
    expected, loss = by_model(params, sizes)
    np.testing.assert_array_equal(grads, expected)
    assert whole.losses[0, 0] == loss
    np.testing.assert_allclose(grads, by_model(params, (10,))[0], rtol=1e-4, atol=1e-6)


def test_the_order_of_the_microbatches_shows():
    whole, params = WholeModel(LAYERS, (7,)), Model(LAYERS, (7,)).init(3)
    first, last = (whole.gradient_of(batch, lambda n: (3, 3, 3, 1), order)(params, 0, 0) for order in ("first", "last"))
    assert not np.array_equal(first, last)
    np.testing.assert_allclose(first, last, rtol=1e-4, atol=1e-6)
