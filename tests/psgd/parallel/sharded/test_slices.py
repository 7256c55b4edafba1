"""Every element is kept by one rank, near-equally, and the own vector has a rank's ranges in order."""

import itertools

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.parallel.sharded.slices import Slices


def adjacent(*sizes):
    ends = np.cumsum([0, *sizes]).tolist()
    return [range(a, b) for a, b in itertools.pairwise(ends)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sizes", [(7,), (15, 17), (2, 0, 1, 50257), ()])
def test_the_ranks_own_vectors_are_the_whole(sizes, ranks):
    units = adjacent(*sizes)
    vector = np.arange(sum(sizes))
    found = []
    for rank in range(ranks):
        slices = Slices(units, ranks, rank)
        own = np.concatenate([vector[r.start : r.stop] for r in slices.own] or [vector[:0]])
        assert slices.size == own.size
        assert slices.whole == vector.size
        for unit, place in enumerate(slices.own):
            assert own[slices.place(unit)].tolist() == list(place)
            assert slices.counts(unit)[rank] == len(place)
        found.append(own)
    assert sorted(np.concatenate(found).tolist()) == vector.tolist()


def test_a_unit_is_cut_near_equally_and_in_rank_order():
    slices = Slices(adjacent(1023, 2), 3, 0)
    assert [slices.of(rank).own[0] for rank in range(3)] == [range(341), range(341, 682), range(682, 1023)]
    assert slices.counts(1) == (1, 1, 0)
    assert slices.of(2).own[1] == range(1025, 1025)


@pytest.mark.parametrize("units", [[range(1, 3)], [range(2), range(3, 5)], [range(0, 4, 2)], [range(2), range(2, 1)]])
def test_units_that_leave_a_gap_are_refused(units):
    with pytest.raises(UsageError, match="expected a unit that begins at"):
        Slices(units, 2, 0)


@pytest.mark.parametrize(("ranks", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_a_rank_that_is_none_is_refused(ranks, rank):
    with pytest.raises(UsageError, match="expected a rank from 0"):
        Slices([range(3)], ranks, rank)
