"""Chunks and agreement as kernels compute them, against those of Python, on tables made by hand."""

import itertools

import numpy as np
import pytest

from psgd.collectives.arguments import descriptor as words
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.split import split
from psgd.collectives.shm import layout, steps
from psgd.kernels.jit import kernel


@kernel
def chunk(node, call, rank, item):
    return steps.first_of(node, call, rank, item), steps.length_of(node, call, rank, item)


@kernel
def agreed(node, state):
    return steps.agreed(node, state)


@kernel
def publish(node, state):
    steps.publish(node, state)


@kernel
def reached(node, rank, step):
    return steps.reached(node, rank, step, 3)


@kernel
def all_reached(node, state, step):
    return steps.all_reached(node, state, step, 3)


class Ranks:
    """A node's table and regions, all in this process."""

    def __init__(self, size):
        self.regions = [np.zeros(layout.SLOTS_AT // 8, np.int64) for _ in range(size)]
        self.tables = []
        for rank in range(size):
            table = np.zeros(layout.REGIONS + 2 * size, np.int64)
            table[[layout.SIZE, layout.RANK]] = size, rank
            table[layout.REGIONS : layout.REGIONS + size] = [address_of(each) for each in self.regions]
            self.tables.append(table)
        self.states = [np.zeros(layout.STATE_WORDS, np.int64) for _ in range(size)]

    def describe(self, rank, *call):
        at = layout.DESCRIPTORS_AT // 8
        words.fill(self.regions[rank][at : at + layout.DESCRIPTOR_WORDS], *call)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_near_equal_chunks_are_those_of_split(size):
    ranks, call = Ranks(size), np.zeros(layout.CALL_WORDS, np.int64)
    for case in itertools.product([0, 1, 15, 16, 17, 1000, 100_003], [1, 4, 8, 16]):
        count, item = case
        call[layout.COUNT] = count
        parts = split(count, size, max(1, layout.ALIGN_BYTES // item))
        got = [chunk(address_of(ranks.tables[0]), address_of(call), rank, item) for rank in range(size)]
        assert [n for _, n in got] == [len(part) for part in parts], case
        assert [first for first, n in got if n] == [part.start for part in parts if part], case


def test_chunks_of_a_table():
    ranks, call = Ranks(2), np.zeros(layout.CALL_WORDS, np.int64)
    table = np.array([[7, 3], [0, 5]], np.int64)
    call[layout.PARTS] = address_of(table)
    assert [chunk(address_of(ranks.tables[0]), address_of(call), rank, 8) for rank in (0, 1)] == [(7, 3), (0, 5)]


@pytest.mark.parametrize(
    ("calls", "wanted"),
    [
        ([(1, 10, (), 0)] * 3, True),
        ([(1, 10, (), 0), (1, 10, (), 0), (2, 10, (), 0)], False),
        ([(1, 10, (), 0), (1, 11, (), 0), (1, 10, (), 0)], False),
        ([(1, 10, (), 0), (1, 10, (), 5), (1, 10, (), 5)], True),
        ([(1, 10, (), 5), (1, 10, (), 0), (1, 10, (), 6)], False),
    ],
)
def test_ranks_agree_as_descriptors_do(calls, wanted):
    ranks = Ranks(3)
    for rank, call in enumerate(calls):
        ranks.describe(rank, *call)
    assert agreed(address_of(ranks.tables[1]), address_of(ranks.states[1])) == wanted
    ranks.regions[2][layout.DESCRIPTORS_AT // 8 + layout.ERROR] = 4
    assert not agreed(address_of(ranks.tables[1]), address_of(ranks.states[1]))


def test_steps_are_seen_once_they_are_published():
    ranks = Ranks(3)
    here = address_of(ranks.tables[0])
    assert reached(here, 1, 0) and not reached(here, 1, 1)
    for rank in (0, 2):
        publish(address_of(ranks.tables[rank]), address_of(ranks.states[rank]))
    assert reached(here, 2, 1) and not reached(here, 2, 2)
    state = ranks.states[0]
    assert not all_reached(here, address_of(state), 1) and state[layout.PEER] == 1, "the one that is behind"
    publish(address_of(ranks.tables[1]), address_of(ranks.states[1]))
    assert all_reached(here, address_of(state), 1) and state[layout.PEER] == 0
