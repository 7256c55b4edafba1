"""Layers of a unit in one: what they say of themselves is what the layers say."""

import numpy as np

from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.parallel.sharded.gathered_layers import Gathered


class Visits:
    """Notes the visits."""

    def __init__(self):
        self.made = []

    def arrive(self, unit, backward=False):
        self.made.append(("arrive", unit, backward))

    def leave(self, unit, backward=False):
        self.made.append(("leave", unit, backward))

    def used(self, unit):
        self.made.append(("used", unit, True))


def test_they_compute_what_the_layers_do_between_two_visits():
    model = Model([Linear(9), ReLU(), Dropout(0.5), Linear(4)], (5,))
    visits = Visits()
    layer = Gathered(tuple(model.steps), 7, visits)
    assert layer.output_shape((5,)) == (4,)
    assert [spec.name for spec in layer.weights((5,))] == [p.name for p in model.layout.parameters]
    assert layer.reads_output == model.layers[-1].reads_output
    assert layer.loss is None
    params = model.init(1)
    results = []
    for made in (model, model.regrouped([model.steps[0].__class__(layer, "", (5,), layer.weights((5,)), 0)])):
        grads = np.zeros_like(params)
        made.bind(params, grads)
        context = made.context(3)
        context.draw(1, np.arange(3))
        x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
        results.append((made.gradient(context, x, np.array([0, 1, 3])), grads))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert visits.made == [("arrive", 7, False), ("leave", 7, False), ("arrive", 7, True), ("used", 7, True)]
