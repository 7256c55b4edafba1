"""Buffers of units: two that take turns, and one for each unit that is in use beside others."""

from psgd.parallel.sharded.slices import Slices
from psgd.parallel.sharded.unit_buffers import assign, places


def test_units_take_turns():
    assert assign(5) == (0, 1, 0, 1, 0)
    assert assign(5, {1}) == (0, 2, 1, 0, 1)
    assert assign(1) == (0,)


def test_a_buffer_is_as_large_as_its_largest_unit():
    slices = Slices([range(100), range(100, 110), range(110, 150), range(150, 200)], 2, 0)
    assert places(slices, assign(4), 16) == ({0: 0, 1: 112}, 176)
    assert places(slices, assign(4, {0}), 16) == ({0: 0, 1: 64, 2: 112}, 224)
