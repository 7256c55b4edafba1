"""Parts of a stage: names, first values, bits of gradients, refusals."""

import itertools

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten
from psgd.nn.stage import Stage

LAYERS = (ChannelsLast(), Conv2D(3, 3), ReLU(), Flatten(), Linear(7), ReLU(), Linear(6), Linear(4))
SHAPE, N = (2, 5, 6), 9


def cuts_at(*cuts):
    model = Model(LAYERS, SHAPE, np.float64)
    ends = (0, *cuts, len(LAYERS))
    return model, [model.cut(start, stop) for start, stop in itertools.pairwise(ends)]


@pytest.mark.parametrize("cuts", [(4,), (1, 2, 3), (2, 5), (5, 6, 7)])
def test_parts_have_the_names_and_first_values_of_the_whole(cuts):
    model, parts = cuts_at(*cuts)
    whole = model.layout.views(model.init(3))
    found = {}
    for part in parts:
        found |= part.layout.views(part.init(3))
    assert list(found) == list(whole)
    assert all(np.array_equal(found[name], whole[name]) for name in whole)
    assert np.abs(whole["conv1.weight"]).max() > 0
    forms = dict(model.layout.torch)
    assert {name: form for part in parts for name, form in part.layout.torch} == forms


@pytest.mark.parametrize("cuts", [(4,), (1, 2, 3), (2, 5), (5, 6, 7)])
def test_parts_in_a_row_give_the_bits_of_the_whole(cuts):
    model, parts = cuts_at(*cuts)
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((N, *SHAPE)), rng.integers(0, 4, N)
    grads = np.empty(model.layout.size)
    model.bind(model.init(3), grads)
    loss = model.gradient(model.context(N), x, y)
    contexts, vectors, z = [], [], x
    for index, part in enumerate(parts):
        vectors.append(np.full(part.layout.size, np.nan))
        part.bind(part.init(3), vectors[-1])
        contexts.append(part.context(N, wants_dx=index > 0))
        z = part.forward(contexts[-1], z)
    dy, found = parts[-1].loss(contexts[-1], y)
    for part, ctx in zip(parts[::-1], contexts[::-1], strict=True):
        dy = part.backward(ctx, dy)
    assert found == loss
    whole = model.layout.views(grads)
    for part, vector in zip(parts, vectors, strict=True):
        assert all(np.array_equal(view, whole[name]) for name, view in part.layout.views(vector).items())


def test_shapes_and_kinds():
    model, (first, last) = cuts_at(4)
    assert first.input_shape == SHAPE and first.output_shape == last.input_shape == (3 * 4 * 3,)
    assert type(first) is Stage and type(last) is Model and last.classes == 4
    assert [len(part.layers) for part in (first, last)] == [4, 4]
    assert model.layout.size > first.layout.size and len(model.layers) == 8
    again = last.cut(2, 4)  # a part of a part
    assert [p.name for p in again.layout.parameters] == [
        "linear2.weight",
        "linear2.bias",
        "linear3.weight",
        "linear3.bias",
    ]
    assert model.cut(0, 1).layout.size == 0


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 2), (-1, 2), (0, 9)])
def test_refusals(start, stop):
    with pytest.raises(
        UsageError, match=f"expected at least one of the layers 0 to 7, got those from {start} up to {stop}"
    ):
        Model(LAYERS, SHAPE).cut(start, stop)


def test_a_loss_needs_a_forward_pass():
    model = Model(LAYERS, SHAPE)
    model.bind(model.init(0), np.empty(model.layout.size, np.float32))
    with pytest.raises(UsageError, match="needs a forward pass"):
        model.loss(model.context(2), np.zeros(2, np.int64))
