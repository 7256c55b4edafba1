"""Interleaved: groups of microbatches of any number, and the programs of a small case."""

import pytest

from psgd.parallel.schedules import interleaved


def test_two_ranks_with_two_chunks_each():
    first, last = interleaved.build(2, 2, 2).programs
    assert " ".join(map(str, first)) == "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"
    assert " ".join(map(str, last)) == "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1"


@pytest.mark.parametrize(("microbatches", "first_turn"), [(2, 2), (3, 3), (4, 4), (6, 6), (8, 4), (9, 5), (11, 6)])
def test_a_group_has_at_least_as_many_microbatches_as_ranks(microbatches, first_turn):
    program = interleaved.build(4, microbatches).programs[0]
    assert [each.chunk for each in program].index(1) == first_turn
