"""Parameters with several names: one place, first values however layers are cut, the sum of the gradients."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn.layers.embedding import Embedding, Positions, Unembedding
from psgd.nn.layers.gelu import GELU
from psgd.nn.layers.layernorm import LayerNorm
from psgd.nn.linear import Linear
from psgd.nn.residual import Residual
from psgd.nn.stage import Stage

LAYERS = (
    Embedding(11, 6),
    Positions(),
    Residual((LayerNorm(), Linear(7), GELU(), Linear(6))),
    Unembedding(11),
)
TOKENS = np.array([[3, 10, 0, 3], [1, 1, 7, 10]], np.float64)


def gradient(layers, values, microbatches=1):
    """The gradient by name of a sum of the outputs with fixed factors, at parameters given by name."""
    stage = Stage(layers, (4,), np.float64)
    params, grads = np.zeros(stage.layout.size), np.full(stage.layout.size, np.nan)
    for name, view in stage.layout.views(params).items():
        view[...] = values[name]
    stage.bind(params, grads)
    ctx = stage.context(2)
    dy = np.random.default_rng(1).standard_normal((2, 4, 11))
    for part in np.array_split(np.arange(2), microbatches):
        stage.forward(ctx, TOKENS[part])
        stage.backward(ctx, dy[part].copy(), accumulate=part[0] > 0)
    return stage.layout.views(grads), grads, stage.layout


def values():
    rng = np.random.default_rng(0)
    stage = Stage(LAYERS, (4,), np.float64)
    found = {name: rng.standard_normal(view.shape) for name, view in stage.layout.views(stage.init(0)).items()}
    return found | {"unembedding1.weight": found["embedding1.weight"]}


def test_two_names_are_one_place():
    stage = Stage(LAYERS, (4,))
    assert stage.layout.tied == (("unembedding1.weight", "embedding1.weight"),)
    assert "unembedding1.weight" not in [p.name for p in stage.layout.parameters]
    views = stage.layout.views(stage.init(3))
    assert views["unembedding1.weight"].base is views["embedding1.weight"].base
    assert views["unembedding1.weight"].std() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_gradient_is_the_sum_of_both_layers(microbatches):
    chosen = values()
    apart, _, _ = gradient((*LAYERS[:-1], Unembedding(11, tied=None)), chosen, microbatches)
    tied, vector, layout = gradient(LAYERS, chosen, microbatches)
    for name in apart:
        expected = apart[name]
        if name in ("embedding1.weight", "unembedding1.weight"):
            expected = apart["embedding1.weight"] + apart["unembedding1.weight"]
        np.testing.assert_allclose(tied[name], expected, rtol=1e-13, atol=1e-13)
    assert all((vector[gap.start : gap.stop] == 0).all() for gap in layout.padding)


def test_ranges_are_ready_once_and_are_the_whole():
    stage = Stage(LAYERS, (4,))
    params = stage.init(0)
    grads, ready = np.full_like(params, np.nan), []
    stage.bind(params, grads)
    ctx = stage.context(2)
    y = stage.forward(ctx, TOKENS.astype(np.float32))

    def on_ready(part):
        assert np.isfinite(grads[part.start : part.stop]).all()
        ready.append(part)

    stage.backward(ctx, np.ones_like(y), on_ready)
    assert [i for part in ready[::-1] for i in part] == list(range(stage.layout.size))


def test_a_part_without_the_owner_has_a_place_of_its_own_with_the_same_values():
    whole = Stage(LAYERS, (4,))
    views = whole.layout.views(whole.init(5))
    last = whole.cut(2, 4)
    assert last.layout.tied == ()
    part = last.layout.views(last.init(5))
    assert set(part) == {name for name in views if name.startswith(("residual1", "unembedding1"))}
    for name in part:
        np.testing.assert_array_equal(part[name], views[name])


def test_of_two_names_without_the_owner_the_first_has_the_place():
    layers = (Linear(4), Linear(4), Unembedding(4, tied="linear1.weight"), Unembedding(4, tied="linear1.weight"))
    whole = Stage(layers, (4,))
    part = whole.cut(1, 4)
    assert part.layout.tied == (("unembedding2.weight", "unembedding1.weight"),)
    source, drawn = whole.layout.views(whole.init(1)), part.layout.views(part.init(1))
    np.testing.assert_array_equal(drawn["unembedding2.weight"], source["linear1.weight"])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            (Linear(4), Unembedding(4)),
            "unembedding1.weight: expected to be tied to .* got embedding1.weight; there are",
        ),
        ((Unembedding(4), Embedding(4, 4)), "earlier layer, got embedding1.weight; there are: none"),
        ((Embedding(5, 4), Unembedding(6)), r"expected the shape \(5, 4\) of embedding1.weight.* got \(6, 4\)"),
    ],
)
def test_ties_that_cannot_be_are_refused(layers, message):
    with pytest.raises(UsageError, match=message):
        Stage(layers, (4,))
