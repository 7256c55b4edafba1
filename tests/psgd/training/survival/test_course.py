"""A worker's batches: its own share as ever, and what it takes over at once."""

import numpy as np

from psgd.data.sampler import Sampler
from psgd.training.survival.course import Course


def course(worker=1, epochs=2):
    return Course(Sampler(20, 2, worker, 4, 0), epochs)


def test_without_deaths_it_is_the_samplers_order():
    sampler = Sampler(20, 2, 1, 4, 0)
    found = [(s.epoch, s.step, s.number, s.samples.tolist()) for s in course().after(0)]
    expected = [(e, s, 3 * e + s, sampler.batch(e, s).tolist()) for e in range(2) for s in range(3)]
    assert found == expected
    assert [(s.epoch, s.step) for s in course().after(4)] == [(1, 1), (1, 2)]
    assert list(course().after(6)) == []


def test_what_it_takes_over_comes_at_once_and_then_the_new_share():
    one = course()
    steps = one.after(0)
    next(steps)
    one.receive(np.array([1, 0, 1, 3, 90, 91, 92, 93, 94], np.int64))
    assert not course(1).leads and one.leads  # the only one that is left
    taken = [next(steps) for _ in range(3)]
    assert [each.samples.tolist() for each in taken] == [[90, 91, 92, 93], [94], []]
    assert not any(each.planned for each in taken) and len({each.step for each in taken}) == 3
    assert [(s.epoch, s.step) for s in steps] == [(0, 1), (0, 2), *((1, step) for step in range(5))]


def test_it_asks_at_the_end_and_goes_on():
    one, asked, left = course(epochs=1), [], [True]

    def ends():
        assert not left
        asked.append(1)
        if len(asked) == 1:
            one.receive(np.array([1, 0, 1, 1, 77], np.int64))
        return len(asked) == 2

    one.ends, one.rest = ends, lambda: bool(left and left.pop())
    assert [each.samples.tolist() for each in one.after(3)] == [[77]]
    assert len(asked) == 2
