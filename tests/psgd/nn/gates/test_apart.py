"""Each layer's part of the vector, and layers bound to memory of their own: the same gradients."""

import numpy as np

from psgd.nn.gates import apart
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build


def test_parts_cover_the_vector_and_name_ties():
    model = build("gpt", (8,), 11, tokens=True, layers=2, width=16, heads=2)
    layers = apart.parts(model)
    owns = [each.own for each in layers if each.own]
    assert [i for own in owns for i in own] == list(range(model.layout.size))
    (tie,) = [each for each in layers if each.tied]
    place = {p.name: p for p in model.layout.parameters}[dict(model.layout.tied).popitem()[1]]
    assert tie.tied == (range(place.offset, place.offset + place.size),) and not tie.own
    assert tie.size == place.size and place.offset in layers[0].own


def test_layers_apart_have_the_gradients_of_the_vector():
    for model, samples in (
        (Model([Linear(7, relu=True), Linear(3)], (5,)), np.random.default_rng(1).normal(size=(4, 5))),
        (build("gpt", (8,), 11, tokens=True, layers=1, width=16, heads=2), np.arange(32).reshape(4, 8) % 11),
    ):
        x, y = samples.astype(np.float32), np.ones((4, *model.output_shape[:-1]), np.int64)
        params = model.init(2)
        grads = np.full_like(params, np.nan)
        model.bind(params, grads)
        loss = model.gradient(model.context(4), x, y)
        layers = apart.parts(model)
        far = [np.concatenate([params[p.start : p.stop] for p in each.parts]) for each in layers]
        made = [np.full(len(each.own) + 3, np.nan, np.float32) for each in layers]
        apart.bind(model, layers, far, made)
        assert model.gradient(model.context(4), x, y) == loss
        for each, gradient in zip(layers, made, strict=True):
            np.testing.assert_array_equal(gradient[: len(each.own)], grads[each.own.start : each.own.stop])
            assert np.isnan(gradient[len(each.own) :]).all()
