import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.parallel.axes import AXES
from psgd.parallel.mesh.node_order import arrange, crossing

FACTORS = [sizes for sizes in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(sizes) == 8]


def named(tensor=1, pipe=1, data=1):
    return {"tensor": tensor, "pipe": pipe, "data": data}


@pytest.mark.parametrize("nodes", ["aaaaaaaa", "aaaabbbb", "abababab", "aabbccdd", "abcdefgh"])
def test_every_coordinate_is_taken_once_and_rank_0_is_the_origin(nodes):
    for sizes in FACTORS:
        order, places = arrange(nodes, named(*sizes))
        assert sorted(order) == sorted(AXES), sizes
        taken = {tuple(place[axis] for axis in AXES) for place in places}
        assert taken == set(itertools.product(*map(range, sizes))), sizes
        assert set(places[0].values()) == {0}, sizes


def test_neighbours_by_tensor_share_a_node_however_ranks_are_dealt_to_nodes():
    for nodes in ("aaaabbbb", "abababab", "abbaabab"):
        order, places = arrange(nodes, named(tensor=4, data=2))
        assert order[0] == "tensor"
        assert crossing(nodes, places, "tensor") == 0 and crossing(nodes, places, "data") == 4


def test_replicas_are_on_different_nodes_where_one_fits_into_a_node():
    order, places = arrange("aaaabbbb", named(2, 2, 2))
    assert order == ("tensor", "pipe", "data")
    assert [place["data"] for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [place["pipe"] for place in places] == [0, 0, 1, 1] * 2
    assert [place["tensor"] for place in places] == [0, 1] * 4


def test_a_pipeline_goes_from_node_to_node_where_a_replica_does_not_fit():
    nodes = "aaaabbbbccccdddd"
    order, places = arrange(nodes, named(2, 4, 2))
    assert order == ("tensor", "data", "pipe")
    assert [crossing(nodes, places, axis) for axis in ("tensor", "data", "pipe")] == [0, 0, 4]
    assert [place["pipe"] for place in places] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_nodes_of_unequal_size_keep_as_many_tensor_groups_as_they_can():
    nodes = "aaabbbbb"
    _, places = arrange(nodes, named(tensor=2, data=4))
    assert crossing(nodes, places, "tensor") == 1  # 3 + 5 ranks: one of the four must leave
    assert places[0]["tensor"] == 0 and places[1] == places[0] | {"tensor": 1}


def most_groups_inside(nodes, size):
    return sum(nodes.count(node) // size for node in set(nodes))


@given(st.data())
def test_no_order_could_keep_more_tensor_groups_inside(data):
    sizes = named(*(data.draw(st.integers(1, 4)) for _ in AXES))
    ranks = math.prod(sizes.values())
    nodes = data.draw(st.lists(st.sampled_from("abcd"), min_size=ranks, max_size=ranks))
    _, places = arrange(nodes, sizes)
    groups = ranks // sizes["tensor"]
    assert crossing(nodes, places, "tensor") == groups - most_groups_inside(nodes, sizes["tensor"])


def test_axes_of_one_rank_come_last():
    assert arrange("aaaa", named(data=4))[0] == ("data", "tensor", "pipe")
    assert arrange("a", named())[1] == [named(0, 0, 0)]
