"""Units cover the vector, follow the layers, and are no larger than need be."""

import numpy as np
import pytest

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.parallel.sharded import units
from psgd.parallel.sharded.slices import Slices


def test_small_neighbours_are_one_unit_and_large_layers_stay_alone():
    sizes = [0, 10, 0, 10, 20_000, 5, 5, 0]
    assert units.grouped(sizes, 4) == [range(4), range(4, 5), range(5, 8)]
    assert units.grouped([0, 0], 4) == []


@pytest.mark.parametrize("smallest", [1, 1 << 16])
def test_units_of_layers_cover_the_vector(smallest, monkeypatch):
    monkeypatch.setattr(units, "SMALLEST_BYTES", smallest)
    for model in (
        Model([Linear(200, relu=True), Linear(7), Linear(3)], (17,)),
        build("gpt", (8,), 13, tokens=True, layers=2, width=12, heads=2),
    ):
        found = units.of_stage(model)
        assert Slices(found, 2, 0).whole == model.layout.size
        assert all(found)
        largest = max(len(each) for each in model.ready_ranges)
        assert max(map(len, found)) <= max(largest, smallest // 4)
        assert (len(found) == sum(map(bool, model.ready_ranges))) == (smallest == 1)


def test_units_of_a_bare_vector_are_near_equal():
    found = units.of_bytes(1_000_003, 4, 1 << 20)
    assert Slices(found, 3, 0).whole == 1_000_003
    assert len(found) == 4
    assert np.ptp([len(each) for each in found]) < 32
    assert units.of_bytes(0, 4) == (range(0),)
