"""First values by unit are those of the whole model."""

import numpy as np
import pytest
from harness.sharded_runs import mlp, tied

from psgd.parallel.sharded import units
from psgd.parallel.sharded.by_unit import first_own, shared_units
from psgd.parallel.sharded.slices import Slices


@pytest.mark.parametrize("make", [mlp, tied])
def test_own_first_values_are_slices_of_the_whole(make, monkeypatch):
    monkeypatch.setattr(units, "SMALLEST_BYTES", 64)
    model = make()
    whole = model.init(5)
    for rank in range(3):
        slices = Slices(units.of_stage(model), 3, rank)
        own = first_own(model, slices, 5)
        expected = np.concatenate([whole[part.start : part.stop] for part in slices.own])
        np.testing.assert_array_equal(own, expected)
        assert np.abs(own).max() > 0


def test_a_weight_with_two_names_is_shared_by_two_units(monkeypatch):
    monkeypatch.setattr(units, "SMALLEST_BYTES", 64)
    model = tied()
    shared = shared_units(model, units.of_stage(model))
    assert shared[-1] == [0]
    assert not any(shared[:-1])
