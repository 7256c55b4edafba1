"""Zero bubble: halves in order, memory of 1F1B's first rank, and less than 0.4 of its bubble."""

import pytest

from psgd.parallel.schedules import catalog, grid
from psgd.parallel.schedules.rehearsal import DOUBLE, rehearse
from psgd.parallel.schedules.schedule import alive


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 8), (8, 32)])
def test_a_third_of_the_bubble_at_the_memory_of_1f1b(ranks, microbatches):
    zero, turns = catalog.make("zero-bubble", ranks, microbatches), catalog.make("1f1b", ranks, microbatches)
    idle = [grid.span(rehearse(each, DOUBLE)) - 3 * microbatches for each in (zero, turns)]
    assert idle[0] == pytest.approx(idle[1] / 3)
    assert max(map(alive, zero.programs)) == max(map(alive, turns.programs))


def test_one_rank_and_one_microbatch():
    assert [str(each) for each in catalog.make("zero-bubble", 1, 1).programs[0]] == ["F0", "X0", "W0"]
    assert [str(each) for each in catalog.make("zero-bubble", 2, 1).programs[1]] == ["F0", "X0", "W0"]
