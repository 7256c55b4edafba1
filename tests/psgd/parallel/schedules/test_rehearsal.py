"""Times and deadlocks of the model of messages that wait for both sides."""

import pytest

from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.rehearsal import Cell, ScheduleFault, rehearse


def starts(cells, rank):
    return {str(cell.instruction): cell.start for cell in cells if cell.rank == rank}


def test_messages_take_their_time():
    cells = rehearse(catalog.make("1f1b", 2, 1), {"F": 2, "B": 3}, transfer=10)
    assert [(cell.start, cell.stop) for cell in cells] == [(0, 2), (27, 30), (12, 14), (14, 17)]
    assert cells[0] == Cell(0, catalog.make("1f1b", 2, 1).programs[0][0], 0, 2)


def test_a_rank_may_be_slower_than_others():
    cells = rehearse(catalog.make("inference", 2, 3), lambda rank, each: 1 + 4 * rank)
    assert starts(cells, 1) == {"F0": 1, "F1": 6, "F2": 11}


def test_a_fast_rank_waits_for_a_free_buffer():
    cells = rehearse(catalog.make("inference", 2, 5), lambda rank, each: 1 + 9 * rank)
    # Two outputs may be on their way: F0 left at 1, F1 leaves at 11 and F2 at 21.
    assert starts(cells, 0) == {"F0": 0, "F1": 1, "F2": 2, "F3": 11, "F4": 21}


@pytest.mark.parametrize(("ranks", "microbatches", "ends"), [(2, 1, True), (2, 2, False), (4, 8, False)])
def test_sends_that_block_make_1f1b_a_deadlock(ranks, microbatches, ends):
    schedule = catalog.make("1f1b", ranks, microbatches)
    if ends:
        rehearse(schedule, blocking_sends=True)
    else:
        with pytest.raises(ScheduleFault, match=r"1f1b: deadlock: rank 0 at B0, .*at F1"):
            rehearse(schedule, blocking_sends=True)


@pytest.mark.parametrize("name", ["gpipe", "inference"])
def test_sends_that_block_are_fine_where_all_go_one_way_first(name):
    rehearse(catalog.make(name, 4, 8), blocking_sends=True)
