"""Recomputed activations: the same bits, and the memory that the formula says."""

import numpy as np
import pytest

from psgd.estimate.counting import CountingArrays
from psgd.kernels.errors import UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.residual import Residual

SEGMENTS = [
    (),
    (range(0, 1),),
    (range(0, 3), range(3, 6)),
    (range(1, 4),),
    (range(0, 2), range(2, 5), range(5, 8)),
    (range(0, 8),),
]


def model():
    inside = Residual((Linear(40, relu=True), Dropout(0.3), Linear(24)))
    return Model(
        [Linear(24), inside, Linear(24, relu=True), Dropout(0.5), inside, inside, Linear(24), Linear(5)], (12,)
    )


def gradients(made, steps=3, wants_dx=True):
    """Gradients and losses of some batches, with dropout, one of them in two parts."""
    params = made.init(3)
    grads = np.zeros_like(params)
    made.bind(params, grads)
    ctx, other = made.context(8, wants_dx), made.context(8, wants_dx)
    rng = np.random.default_rng(0)
    found = []
    for step in range(steps):
        for part, each in enumerate((ctx, other)):
            each.draw(step, np.arange(part * 8, part * 8 + 8))
            x, y = rng.normal(size=(8, 12)).astype(np.float32), rng.integers(0, 5, 8)
            found.append(made.gradient(each, x, y, batch_size=16, accumulate=part == 1))
        found.append(grads.copy())
    return params, found


@pytest.mark.parametrize("segments", SEGMENTS, ids=str)
@pytest.mark.parametrize("wants_dx", [True, False])
def test_bits_are_those_without(segments, wants_dx):
    params, expected = gradients(model(), wants_dx=wants_dx)
    again, got = gradients(model().recomputed(segments), wants_dx=wants_dx)
    np.testing.assert_array_equal(params, again)
    assert np.abs(expected[2]).max() > 0
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resmlp"])
def test_the_models_of_the_catalog(name):
    plain = build(name, (1, 28, 28), 10, hidden=16)
    half = len(plain.layers) // 2
    found = []
    for made in (plain, plain.recomputed((range(0, half), range(half, len(plain.layers))))):
        params = made.init(1)
        made.bind(params, grads := np.zeros_like(params))
        x = np.random.default_rng(1).normal(size=(4, 1, 28, 28)).astype(np.float32)
        loss = made.gradient(made.context(4), x, np.arange(4))
        found.append((loss, grads, params))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][2], found[1][2])


def count(made, batch):
    counting = CountingArrays()
    made.context(batch, xp=counting)
    return counting.nbytes


def test_activations_are_outputs_and_the_inside_of_one_segment():
    """L equal blocks: L outputs and one block, instead of L blocks."""
    inside = Residual((Linear(640, relu=True), Linear(64)))
    plain = Model([Linear(64), *[inside] * 10, Linear(5)], (64,))
    batch, wide = 32, 4
    block = count(Model([Linear(64), *[inside] * 11, Linear(5)], (64,)), batch) - count(plain, batch)
    output = batch * 64 * wide
    got = count(plain.recomputed([range(k, k + 1) for k in range(1, 11)]), batch)
    expected = count(plain, batch) - 10 * block + 10 * output + block
    assert abs(got - expected) < 0.05 * expected
    assert got < 0.3 * count(plain, batch)


@pytest.mark.parametrize(
    "segments", [(range(2, 2),), (range(0, 3), range(2, 4)), (range(4, 9),), (range(3, 4), range(0, 1))]
)
def test_wrong_segments_are_refused(segments):
    with pytest.raises(UsageError, match="recomputed: expected ranges of the 8 layers in order"):
        model().recomputed(segments)
