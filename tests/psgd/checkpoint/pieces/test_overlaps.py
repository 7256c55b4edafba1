"""What of saved pieces a vector of another layout is made of."""

import itertools

import numpy as np
import pytest

from psgd.checkpoint.pieces.overlaps import overlaps
from psgd.kernels.errors import CheckpointError
from psgd.nn.layout import Layout

SHAPES = {"a.weight": (7, 13), "a.bias": (7,), "b.weight": (5, 7), "c.weight": (5,)}
WHOLE = {name: np.arange(np.prod(shape)).reshape(shape) + 1000 * at for at, (name, shape) in enumerate(SHAPES.items())}


def cut(axes, places):
    """One layout for each of `places` ranks that cut some parameters along an axis and have the others alike."""
    layouts = []
    for place in range(places):
        shapes, parts = [], {}
        for name, shape in SHAPES.items():
            own, start = list(shape), [0] * len(shape)
            if name in axes:
                edges = [shape[axes[name]] * each // places for each in range(places + 1)]
                own[axes[name]], start[axes[name]] = edges[place + 1] - edges[place], edges[place]
                parts[name] = (shape, start)
            shapes.append((name, own))
        layouts.append(Layout(shapes, parts=parts))
    return {f"tensor{place}": layout for place, layout in enumerate(layouts)}


def vector(layout):
    made = np.full(layout.size, -1)
    for parameter in layout.parameters:
        layout.views(made)[parameter.name][...] = WHOLE[parameter.name][parameter.slices]
    return made


CUTS = [
    cut({}, 1),
    cut({"a.weight": 0, "a.bias": 0, "b.weight": 1}, 3),
    cut({"a.weight": 1, "b.weight": 0}, 2),
    {"pipe0": Layout([("a.weight", (7, 13))]), "pipe1": Layout([(n, SHAPES[n]) for n in list(SHAPES)[1:]])},
]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(range(len(CUTS)), repeat=2)))
def test_any_cut_becomes_any_other(before, after):
    saved = {piece: vector(layout) for piece, layout in CUTS[before].items()}
    for layout in CUTS[after].values():
        made = np.full(layout.size, -1)
        for part in overlaps(layout, CUTS[before], {}):
            source = saved[part.piece][part.source.offset : part.source.stop].reshape(part.source.shape)
            layout.views(made)[part.target.name][part.filled] = source[part.taken]
        np.testing.assert_array_equal(made, vector(layout))


def test_what_several_pieces_have_is_taken_once_from_the_first():
    found = overlaps(CUTS[0]["tensor0"], CUTS[1], {})
    assert [part.piece for part in found if part.target.name == "c.weight"] == ["tensor0"]


def test_tied_parameters_are_found_under_either_name():
    target = Layout([("out.weight", (7, 13))])
    (part,) = overlaps(target, CUTS[0], {"out.weight": "a.weight"})
    assert (part.source.name, part.target.name) == ("a.weight", "out.weight")
    (part,) = overlaps(Layout([("a.weight", (7, 13))]), {"pipe3": target}, {"out.weight": "a.weight"})
    assert (part.piece, part.source.name) == ("pipe3", "out.weight")


def test_what_is_missing_or_has_another_shape_is_refused():
    half = {"tensor0": CUTS[1]["tensor0"]}
    with pytest.raises(CheckpointError, match=r"a\.weight: expected 91 elements, the checkpoint has 26 of them"):
        overlaps(CUTS[0]["tensor0"], half, {})
    with pytest.raises(CheckpointError, match=r"c\.weight: expected shape \(6,\), the checkpoint has \(5,\)"):
        overlaps(Layout([("c.weight", (6,))]), CUTS[0], {})
    with pytest.raises(CheckpointError, match=r"d: expected 3 elements, the checkpoint has 0"):
        overlaps(Layout([("d", (3,))]), CUTS[0], {})
