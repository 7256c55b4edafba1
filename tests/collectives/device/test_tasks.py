"""Chains in lanes: what goes on when."""

from collections import deque

import pytest

from psgd.collectives.device.tasks import DeviceEvent, DeviceTask, in_lanes


class Later:
    """Sets each of its flags at the n-th look; knows how many it has."""

    def __init__(self):
        self.flags = deque()

    def flag(self, looks):
        flag = DeviceEvent(looks == 0)
        if looks:
            self.flags.append([looks, flag])
        return flag

    def poll(self):
        now = list(self.flags)
        self.flags.clear()
        for each in now:
            each[0] -= 1
        self.flags.extend(each for each in now if each[0])
        for looks, flag in now:
            if looks == 0:
                flag.set()
        return any(looks == 0 for looks, _ in now)


def run(steps):
    for test in steps:
        for _ in range(1000):
            if test():
                break
        else:
            pytest.fail("it waits for ever")


def test_a_task_goes_as_far_as_it_can_at_once():
    told, flag = [], DeviceEvent()

    def chain():
        told.append(1)
        yield DeviceEvent(True)
        told.append(2)
        yield flag
        told.append(3)

    task = DeviceTask(chain())
    assert told == [1, 2] and not task.done
    flag.set()
    assert told == [1, 2, 3] and task.done


def test_a_chain_that_waits_for_a_task_goes_on_after_it():
    told, flag = [], DeviceEvent()

    def inner():
        yield flag
        told.append("inner")

    def outer():
        yield DeviceTask(inner())
        told.append("outer")

    outside = DeviceTask(outer())
    flag.set()
    assert told == ["inner", "outer"] and outside.done


def test_a_lane_is_taken_only_once_its_chain_is_at_its_end():
    """Whatever belongs to chain k is kept by k % width."""
    later, active, most, order = Later(), set(), 0, []

    def lane(k):
        nonlocal most
        active.add(k)
        most = max(most, len(active))
        assert len({each % 3 for each in active}) == len(active)
        for _ in range([5, 1, 1, 3, 1, 2, 1][k]):
            yield later.flag(1)
        active.discard(k)
        order.append(k)

    run(in_lanes(7, 3, lane, (later.poll,)))
    assert sorted(order) == list(range(7)) and most == 3
    assert order.index(3) > order.index(0) and order[0] == 1


@pytest.mark.parametrize("looks", range(6))
@pytest.mark.parametrize("count", range(5))
def test_flags_that_are_set_at_any_look_are_seen(looks, count):
    later, told = Later(), []

    def lane(k):
        yield later.flag(looks + k)
        yield later.flag(looks)
        told.append(k)

    run(in_lanes(count, 2, lane, (later.poll, lambda: False)))
    assert sorted(told) == list(range(count))


def test_a_round_without_news_says_so():
    """Then whoever waits looks whether the others still live, and in the end sleeps."""
    flag = DeviceEvent()

    def lane(k):
        yield flag

    (test,) = (test for test, _ in zip(in_lanes(1, 1, lane, (lambda: False,)), range(1), strict=False))
    assert not test()
    flag.set()
    assert test()


def test_what_a_chain_raises_ends_the_round_that_it_goes_on_in():
    later = Later()

    def lane(k):
        yield later.flag(2)
        raise ValueError("a neighbour is lost")

    with pytest.raises(ValueError, match="a neighbour is lost"):
        run(in_lanes(2, 2, lane, (later.poll,)))
