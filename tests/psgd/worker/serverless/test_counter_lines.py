import numpy as np

from psgd.collectives.mpi.node import address_of
from psgd.kernels.memory import counters
from psgd.metrics.totals import Sums
from psgd.worker.serverless.counter_lines import BYTES, CounterLines


def made(workers):
    raw = np.zeros((workers + 1) * BYTES, np.uint8)
    start = -address_of(raw) % BYTES
    memory = raw[start : start + workers * BYTES]
    return [CounterLines(memory, place) for place in range(workers)]


def test_each_counts_in_its_own_line_and_all_read_all():
    lines = made(3)
    lines[0].compile()
    lines[0].count(4, 0.5)
    lines[2].count(2, 2.0)
    lines[2].count(3, 1.0)
    for each in lines:
        assert each.sums() == Sums(3, 9, 4 * 0.5 + 2 * 2.0 + 3 * 1.0)
        assert each.steps() == [1, 0, 2]
        assert [each.line(place) for place in range(3)] == [Sums(1, 4, 2.0), Sums(0, 0, 0.0), Sums(2, 5, 7.0)]
        assert each.totals()[:2] == (3, 9)


def test_who_is_done_and_who_asks():
    lines = made(3)
    assert lines[0].active() == [0, 1, 2] and not lines[0].all_done() and lines[0].request() == 0
    lines[1].put(counters.DONE, 1)
    lines[2].put(counters.WISH, 2)
    assert lines[0].active() == [0, 2] and lines[0].request() == 2
    lines[0].put(counters.DONE, 1)
    lines[2].put(counters.DONE, 1)
    assert lines[1].all_done()


def test_others_are_asked_and_written_for_by_name():
    lines = made(3)
    lines[2].count(5, 1.0)
    lines[2].put(counters.DONE, 1)
    assert lines[0].samples() == [0, 0, 5] and lines[0].done([2]) and not lines[0].done([1, 2])
    lines[0].put_for(2, counters.SAMPLES, 3)
    assert lines[1].word(2, counters.SAMPLES) == 3 and lines[2].samples() == [0, 0, 3]


def test_a_line_is_set_before_anybody_counts():
    lines = made(2)
    lines[1].set_line(Sums(5, 40, 12.5))
    lines[1].count(2, 0.25)
    assert lines[0].line(1) == Sums(6, 42, 13.0)
