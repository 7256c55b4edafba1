"""Contexts without a backward pass: the same bits in fewer buffers."""

import numpy as np
import pytest

from psgd.estimate import activations
from psgd.kernels.errors import UsageError
from psgd.nn import models
from psgd.nn.gates.gated import gated
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten
from psgd.nn.residual import Residual

BATCH = 6


class Silent:
    """A gate that nobody listens to."""

    def enter(self, index, backward):
        pass

    leave = enter


def gpt():
    return models.build("gpt", (12,), 31, tokens=True, layers=3, width=24, heads=4)


def views():
    """Layers that hand on their input, in a row and inside others, where buffers serve again at once."""
    inner = Residual((Dropout(0.5), Linear(12), Dropout(0.5), Linear(12)))
    layers = [Flatten(), Dropout(0.3), Flatten(), Linear(12), Dropout(0.3), ReLU(), inner, Flatten(), inner, Linear(5)]
    return Model(layers, (3, 4))


CASES = {
    "gpt": gpt,
    "recomputed": lambda: activations.recomputed(gpt(), "all", BATCH),
    "in segments": lambda: activations.recomputed(gpt(), "3", BATCH),
    "gated": lambda: gated(gpt(), Silent()),
    "views": views,
    **{name: lambda name=name: models.build(name, (1, 12, 12), 7) for name in ("mlp", "cnn", "resmlp", "lecture-cnn")},
}


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_a_context_for_training(name):
    model, rng = CASES[name](), np.random.default_rng(3)
    params = model.init(1)
    params += rng.normal(0, 0.05, params.size).astype(params.dtype)  # biases too
    model.bind(params, np.zeros_like(params))
    n = 2 * BATCH + 1
    shape = (n, *model.input_shape)
    x = (rng.integers(0, 31, shape) if model.tokens > 1 else rng.normal(size=shape)).astype(np.float32)
    y = rng.integers(0, model.classes, (n, *model.output_shape[:-1]))
    whole, short = model.context(BATCH), model.context(BATCH, trains=False)
    for part in (slice(0, BATCH), slice(BATCH, n - 4)):
        np.testing.assert_array_equal(model.logits(short, x[part]).copy(), model.logits(whole, x[part]))
    assert model.evaluate(short, x, y) == model.evaluate(whole, x, y)
    assert activations.count(model, BATCH, trains=False) < activations.count(model, BATCH)


def test_layers_of_a_row_share():
    """Twice as many layers need no more, and about the largest two outputs with what is inside them."""
    sizes = {"tokens": True, "width": 24, "heads": 4}
    few, many = (models.build("gpt", (12,), 31, layers=layers, **sizes) for layers in (2, 8))
    assert activations.count(few, BATCH, trains=False) == activations.count(many, BATCH, trains=False)
    mlp = models.build("mlp", (1, 12, 12), 7, hidden=50)
    rows = 4 * BATCH * (50 + 7) + 4 * BATCH + 8 * BATCH  # outputs, ones, labels
    assert activations.count(mlp, BATCH, trains=False) <= rows + 4 * BATCH


def test_no_backward_pass_follows():
    model = models.build("mlp", (1, 12, 12), 7)
    params = model.init(0)
    model.bind(params, np.zeros_like(params))
    x, y = np.ones((BATCH, 1, 12, 12), np.float32), np.zeros(BATCH, np.int64)
    with pytest.raises(UsageError, match="on this context for training"):
        model.gradient(model.context(BATCH, trains=False), x, y)
