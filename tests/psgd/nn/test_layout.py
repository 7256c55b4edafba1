"""Layout: offsets, views, padding and the JSON form."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.nn.pytorch import linear

MLP = [("w1", (784, 256)), ("b1", (256,)), ("w2", (256, 10)), ("b2", (10,))]


def test_offsets_by_hand():
    layout = Layout(MLP)
    assert [p.offset for p in layout.parameters] == [0, 200704, 200960, 203520]
    assert layout.size == 203536
    assert layout.padding == (range(203530, 203536),)


def test_align_one_has_no_padding():
    layout = Layout(MLP, align=1)
    assert layout.size == 784 * 256 + 256 + 2560 + 10
    assert layout.padding == ()


def test_views_share_memory_in_place():
    layout = Layout([("a", (2, 3)), ("b", (5,)), ("scalar", ())], align=4)
    vector = np.arange(layout.size, dtype=np.float64)
    views = layout.views(vector)
    assert list(views) == ["a", "b", "scalar"]
    np.testing.assert_array_equal(views["a"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(views["b"], [8, 9, 10, 11, 12])
    assert views["scalar"] == 16
    views["b"][0] = -1
    assert vector[8] == -1


@pytest.mark.parametrize(
    "vector", [np.zeros(15), np.zeros((16, 1)), np.zeros(32)[::2]], ids=["short", "2-D", "strided"]
)
def test_views_refuse_other_vectors(vector):
    with pytest.raises(UsageError, match="vector of 16 elements"):
        Layout([("a", (3,))]).views(vector)


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=6), st.sampled_from([1, 2, 3, 16, 64]))
def test_parameters_and_padding_tile_the_vector(shapes, align):
    layout = Layout([(f"p{i}", shape) for i, shape in enumerate(shapes)], align)
    covered = np.zeros(layout.size, int)
    for p in layout.parameters:
        assert p.offset % align == 0
        assert p.size == int(np.prod(p.shape))
        covered[p.offset : p.stop] += 1
    for gap in layout.padding:
        covered[gap.start : gap.stop] += 1
    assert (covered == 1).all()
    assert layout.size % align == 0
    assert Layout.from_json(layout.to_json()) == layout


def test_equality_is_of_names_shapes_and_alignment():
    assert Layout(MLP) == Layout(MLP)
    assert hash(Layout(MLP)) == hash(Layout(MLP))
    assert Layout(MLP) != Layout(MLP, align=8)
    assert Layout(MLP) != Layout([("v1", (784, 256)), *MLP[1:]])
    assert Layout(MLP) != Layout([("w1", (256, 784)), *MLP[1:]])


@pytest.mark.parametrize(
    "parameters", [[("a", (1,)), ("a", (2,))], [("", (1,))], [("a", (0,))], [("a", (-1,))], [("a", (1.0,))],
                   [(3, (1,))], [("a", (True,))]]
)  # fmt: skip
def test_wrong_parameters_are_refused(parameters):
    with pytest.raises(UsageError, match="layout:"):
        Layout(parameters)


@pytest.mark.parametrize("align", [0, -1, 1.0, True, None])
def test_wrong_alignment_is_refused(align):
    with pytest.raises(UsageError, match="align"):
        Layout(MLP, align)


def test_a_part_knows_its_place_in_the_whole():
    whole = np.arange(48.0).reshape(6, 8)
    for rank in range(2):
        parts = {"w": ((6, 8), (0, 4 * rank))}
        layout = Layout([("w", (6, 4)), ("b", (5,))], align=4, parts=parts)
        w, b = layout.parameters
        assert (w.global_shape, w.start, b.global_shape, b.start) == ((6, 8), (0, 4 * rank), (5,), (0,))
        np.testing.assert_array_equal(whole[w.slices], whole[:, 4 * rank : 4 * rank + 4])
        assert b.slices == (slice(0, 5),)
        assert layout.size == 32  # of the part alone
        assert Layout.from_json(layout.to_json()) == layout
        assert layout != Layout([("w", (6, 4)), ("b", (5,))], align=4)


def test_tied_names_are_one_place():
    layout = Layout([("embedding.weight", (5, 3)), ("bias", (2,))], tied={"output.weight": "embedding.weight"})
    assert layout.size == Layout([("embedding.weight", (5, 3)), ("bias", (2,))]).size
    assert [p.name for p in layout.parameters] == ["embedding.weight", "bias"]
    views = layout.views(np.zeros(layout.size))
    assert list(views) == ["embedding.weight", "bias", "output.weight"]
    views["output.weight"][1, 2] = 7
    assert views["embedding.weight"][1, 2] == 7
    assert Layout.from_json(layout.to_json()) == layout
    assert json.loads(layout.to_json())["tied"] == {"output.weight": "embedding.weight"}
    assert layout != Layout([("embedding.weight", (5, 3)), ("bias", (2,))])


OLD = (
    '{"align": 16, "size": 48, "parameters": [{"name": "linear1.weight", "shape": [7, 3], "offset": 0}, '
    '{"name": "linear1.bias", "shape": [3], "offset": 32}]}'
)


def test_layouts_of_older_checkpoints_are_read_and_written_alike():
    layout = Layout([("linear1.weight", (7, 3)), ("linear1.bias", (3,))])
    assert Layout.from_json(OLD) == layout
    assert layout.to_json() == OLD


@pytest.mark.parametrize(
    ("parts", "tied", "message"),
    [
        ({"a": ((4,), (2,))}, {}, r"part \(3,\) of a, from \(2,\) on, does not lie in a whole of shape \(4,\)"),
        ({"a": ((4,), (-1,))}, {}, "does not lie"),
        ({"a": ((4, 1), (0, 0))}, {}, "does not lie"),
        ({"a": ((4,), (0, 0))}, {}, "does not lie"),
        ({"a": ((4.0,), (0,))}, {}, "does not lie"),
        ({"b": ((4,), (0,))}, {}, "of b, which is not a parameter"),
        ({}, {"b": "c"}, "of c, which is not a parameter"),
        ({}, {"a": "a"}, "each used once, got 'a'"),
        ({}, {"": "a"}, "each used once, got ''"),
        ({}, {3: "a"}, "each used once, got 3"),
    ],
)
def test_wrong_parts_and_ties_are_refused(parts, tied, message):
    with pytest.raises(UsageError, match=f"layout: .*{message}"):
        Layout([("a", (3,))], parts=parts, tied=tied)


def edited(change):
    fields = json.loads(Layout(MLP).to_json())
    change(fields)
    return json.dumps(fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        b"\xff\xfe",
        "[" * 100_000,
        edited(lambda f: f.pop("align")),
        edited(lambda f: f.pop("size")),
        edited(lambda f: f.pop("parameters")),
        edited(lambda f: f.update(size=1)),
        edited(lambda f: f.update(align=32)),
        edited(lambda f: f.update(align="16")),
        edited(lambda f: f.update(parameters=3)),
        edited(lambda f: f.update(more=1)),
        edited(lambda f: f["parameters"][1].update(offset=16)),
        edited(lambda f: f["parameters"][1].pop("offset")),
        edited(lambda f: f["parameters"][1].update(shape=[257])),
        edited(lambda f: f["parameters"][1].update(shape=256)),
        edited(lambda f: f["parameters"][1].update(name=None)),
        edited(lambda f: f["parameters"][1].update(name="w1")),
        edited(lambda f: f["parameters"][1].update(global_shape=[257])),
        edited(lambda f: f["parameters"][1].update(global_shape=[255], start=[0])),
        edited(lambda f: f["parameters"][1].update(global_shape=257, start=0)),
        edited(lambda f: f["parameters"][1].update(global_shape=["x"], start=[0])),
        edited(lambda f: f["parameters"][1].update(start=[0])),
        edited(lambda f: f.update(tied={"w3": "w4"})),
        edited(lambda f: f.update(tied={"w2": "w1"})),
        edited(lambda f: f.update(tied={"w3": ["w1"]})),
        edited(lambda f: f.update(tied=["w3", "w1"])),
        edited(lambda f: f.update(tied=3)),
        edited(lambda f: f.update(tied={})),
    ],
)
def test_wrong_json_is_refused(text):
    with pytest.raises(UsageError, match="layout:"):
        Layout.from_json(text)


def test_a_part_has_the_form_of_its_whole_and_is_not_given_to_pytorch():
    layout = Layout([("w", (4, 1))], parts={"w": ((4, 3), (0, 2))}, torch={"w": linear(4, 3)})
    assert Layout.from_json(layout.to_json()) == layout
    with pytest.raises(UsageError, match="needs whole parameters, and this vector has a part of w"):
        layout.for_torch(np.zeros(layout.size))
    with pytest.raises(UsageError, match="does not fit"):
        Layout([("w", (4, 1))], parts={"w": ((4, 3), (0, 2))}, torch={"w": linear(4, 1)})
