"""Ranges of a gradient from its end, whatever order its parts come in."""

import itertools

import pytest

from psgd.kernels.errors import UsageError
from psgd.torch.frontier import Frontier

OFFSETS, SIZE = [0, 16, 48], 64


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_ranges_touch_from_the_end_to_the_start(order):
    frontier, seen = Frontier(OFFSETS, SIZE), []
    for _ in range(2):
        frontier.begin(seen.append)
        for at, slot in enumerate(order):
            frontier.done(slot)
            final = set(order[: at + 1])
            reached = next((s for s in range(3) if set(range(s, 3)) <= final), 3)
            assert (seen[-1].start if seen else SIZE) == [*OFFSETS, SIZE][reached]
        assert [part.stop for part in seen] == [SIZE, *(part.start for part in seen[:-1])]
        assert seen[-1].start == 0 and all(seen)
        seen.clear()
        frontier.end()


def test_what_does_not_come_holds_back_what_is_before_it():
    frontier, seen = Frontier(OFFSETS, SIZE), []
    frontier.begin(seen.append)
    frontier.done(2)
    frontier.done(0)
    assert seen == [range(48, 64)]
    assert [frontier.is_final(slot) for slot in range(3)] == [True, False, True]
    frontier.end()
    assert not frontier.open and not frontier.is_final(2)


def test_a_second_gradient_is_refused():
    frontier = Frontier(OFFSETS, SIZE)
    frontier.begin(lambda part: None)
    frontier.done(1)
    with pytest.raises(UsageError, match=r"one backward\(\) between"):
        frontier.done(1)
