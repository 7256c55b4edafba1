"""1F1B: the programs of known sizes, and of fewer microbatches than ranks."""

import pytest

from psgd.parallel.schedules import one_f_one_b
from psgd.parallel.schedules.schedule import alive


def text(schedule):
    return [" ".join(map(str, program)) for program in schedule.programs]


def test_three_ranks_and_four_microbatches():
    assert text(one_f_one_b.build(3, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_one_microbatch_and_fewer_than_ranks():
    assert text(one_f_one_b.build(3, 1)) == ["F0 B0"] * 3
    assert text(one_f_one_b.build(3, 2)) == ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (1, 5), (4, 2), (4, 9), (8, 8)])
def test_in_flight_is_as_small_as_it_can_be(ranks, microbatches):
    schedule = one_f_one_b.build(ranks, microbatches)
    limits = tuple(min(microbatches, ranks - rank) for rank in range(ranks))
    assert schedule.in_flight_limit == limits == tuple(map(alive, schedule.programs))
