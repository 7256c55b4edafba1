"""Gathers of a pass: each unit twice, one visit ahead, and never into a buffer that is in use."""

import itertools

import pytest

from psgd.parallel.sharded.unit_buffers import assign
from psgd.parallel.sharded.visits import plan


@pytest.mark.parametrize("units", [1, 2, 3, 6])
@pytest.mark.parametrize("tie", [(), (0, -1), (1, -1)])
def test_each_unit_is_there_when_it_is_used(units, tie):
    tie = tuple(each % units for each in tie)
    if len(set(tie)) == 1:
        pytest.skip("one unit has both names")
    shared = [[tie[0]] if tie and unit == tie[1] else [] for unit in range(units)]
    slots = assign(units, set(itertools.chain(*shared)))
    visits = plan(slots, shared)
    assert visits.forward == units
    held = {}  # what each buffer has
    order = [*range(units), *reversed(range(units))]
    count = [0] * units
    for unit in visits.gathers[0]:
        held[slots[unit]] = unit
        count[unit] += 1
    for visit, unit in enumerate(order):
        uses = [unit, *shared[unit]]
        for ahead in (visits.ahead[visit], visits.after[visit]):
            assert all(held[slots[each]] == each for each in uses)
            if ahead is visits.ahead[visit]:
                assert not {slots[each] for each in ahead} & {slots[each] for each in uses}
            for each in ahead if visit + 1 < len(order) else ():
                held[slots[each]] = each
                count[each] += 1
            if ahead is visits.ahead[visit] and not visits.after[visit]:
                break
    assert count == [2] * units


def test_units_are_gathered_ahead_where_buffers_allow():
    visits = plan(assign(4), [[]] * 4)
    assert visits.gathers == ((0,), (1,), (2,), (3,), (3,), (2,), (1,), (0,))
    assert visits.ahead == ((1,), (2,), (3,), (), (2,), (1,), (0,), ())
    assert visits.after == ((), (), (), (3,), (), (), (), ())
