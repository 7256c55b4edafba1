"""Counters of workers in one memory, each with a cache line of its own."""

import numpy as np

from psgd.kernels.memory import counters
from psgd.metrics.totals import Sums
from psgd.worker.serverless.counter_lines import BYTES, CounterLines


def views(workers):
    whole = np.zeros(BYTES * (workers + 1), np.uint8)
    start = -whole.ctypes.data % BYTES
    memory = whole[start : start + BYTES * workers]
    return memory, [CounterLines(memory, place) for place in range(workers)]


def test_all_read_what_each_counts():
    _, (one, two, three) = views(3)
    one.compile()
    assert one.totals() == (0, 0, 0, 0), "compiling counts nothing"
    one.count(4, 0.5)
    one.count(2, 1.0)
    three.count(8, 0.25)
    assert two.steps() == [2, 0, 1] and two.sums() == Sums(3, 14, 6.0)
    assert two.line(0) == Sums(2, 6, 4.0) and two.line(1) == Sums(0, 0, 0.0)
    one.put(counters.FAR_STEPS, 10)
    one.put(counters.FAR_SAMPLES, 20)
    one.put(counters.STOP, 1)
    assert three.totals() == (13, 34, 0, 1)


def test_who_is_done_and_what_is_requested():
    _, (one, two) = views(2)
    assert one.active() == [0, 1] and not one.all_done() and one.request() == 0
    two.put(counters.WISH, 2)
    one.put(counters.WISH, 1)
    one.put(counters.DONE, 1)
    assert one.active() == [1] and one.request() == 2 and not two.all_done()
    two.put(counters.DONE, 1)
    assert one.all_done() and one.active() == []


def test_a_line_is_restored_and_lies_in_its_own_bytes():
    memory, (one, two) = views(2)
    two.set_line(Sums(5, 40, 2.5))
    assert one.line(1) == Sums(5, 40, 2.5) and not memory[:BYTES].any()
    two.count(2, 1.0)
    assert one.line(1) == Sums(6, 42, 4.5)
