"""Gathers of a schedule's turns: each unit is there when it is used, and comes again where another took its place."""

import itertools

import pytest

from psgd.parallel.schedules import catalog
from psgd.parallel.sharded.pieces.turns import order, plan
from psgd.parallel.sharded.unit_buffers import assign


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble", "interleaved"])
@pytest.mark.parametrize("tie", [(), (0, 3)])
def test_each_unit_is_there_when_it_is_used(name, tie):
    each = 2 if name == "interleaved" else 1
    chunks = {chunk: range(4 * chunk, 4 * chunk + 4) for chunk in range(each)}
    shared = [[tie[0]] if tie and unit == tie[1] else [] for unit in range(4 * each)]
    slots = assign(4 * each, set(itertools.chain(*shared)))
    for program in catalog.make(name, 2, 4, each).programs:
        turns = plan(order(program, chunks), slots, shared)
        assert len(turns.order) == 4 * 4 * 2 * each, "microbatches, units, forward and backward, chunks"
        held = {slots[unit]: unit for unit in turns.gathers[0]}
        for turn, (unit, _) in enumerate(turns.order):
            uses = [unit, *shared[unit]]
            for coming in (turns.ahead[turn], turns.after[turn]):
                assert all(held[slots[one]] == one for one in uses)
                assert not {slots[one] for one in uses} & {slots[one] for one in turns.ahead[turn]}
                held |= {slots[one]: one for one in coming}
        again = sum(map(len, turns.gathers))
        assert again < len(turns.order), "the last unit of a pass is the first of the next one back"
        if tie:
            assert sum(tie[0] in gathered for gathered in turns.gathers) == 1, "it has a buffer of its own"


def test_a_schedule_without_passes_gathers_nothing():
    assert plan([], [], []).gathers == ()
