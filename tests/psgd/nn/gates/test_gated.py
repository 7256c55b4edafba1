"""Gated layers: the same bits, and a gate that is told of each layer in both passes."""

import numpy as np
import pytest

from psgd.nn.gates.gated import gated
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build


class Told:
    def __init__(self):
        self.calls = []

    def enter(self, index, backward):
        self.calls.append(("enter", index, backward))

    def leave(self, index, backward):
        self.calls.append(("leave", index, backward))


def pair(index, backward):
    return [("enter", index, backward), ("leave", index, backward)]


def gradients(model, params, x, y):
    grads = np.full_like(params, np.nan)
    model.bind(params, grads)
    ctx = model.context(len(x))
    ctx.draw(7, np.arange(len(x)))
    ready = []
    loss = model.gradient(ctx, x, y, ready.append)
    return loss, grads, ready, model.evaluate(ctx, x, y)


def test_the_gate_is_told_in_order():
    model = Model([Dropout(0.1), Linear(8, relu=True), Dropout(0.5), Linear(3)], (6,))
    told = Told()
    rng = np.random.default_rng(0)
    x, y, params = rng.normal(size=(4, 6)).astype(np.float32), rng.integers(0, 3, 4), model.init(1)
    expected, got = gradients(model, params, x, y), gradients(gated(model, told), params, x, y)
    assert expected[0] == got[0] and expected[2:] == got[2:]
    np.testing.assert_array_equal(expected[1], got[1])
    forward = [call for index in range(4) for call in pair(index, False)]
    assert told.calls == forward + [call for index in (3, 2, 1) for call in pair(index, True)] + forward


@pytest.mark.parametrize("name", ["mlp", "cnn", "lecture-cnn", "resmlp"])
@pytest.mark.parametrize("recomputes", [True, False])
def test_the_models_of_the_catalog(name, recomputes):
    model = build(name, (1, 12, 12), 5, hidden=16)
    model = model.recomputed([range(len(model.layers) - 1)]) if recomputes else model
    rng = np.random.default_rng(0)
    x, y, params = rng.normal(size=(4, 144)).astype(np.float32), rng.integers(0, 5, 4), model.init(1)
    expected, got = gradients(model, params, x, y), gradients(gated(model, Told()), params, x, y)
    np.testing.assert_array_equal(expected[1], got[1])
    assert np.abs(got[1]).max() > 0 and expected[0] == got[0]
