"""Messages with headers between real ranks."""

import time

import numpy as np
import pytest
from harness.channel import Guarded, values
from mpi4py import MPI

from psgd.collectives.algorithms import channel as module
from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments import descriptor, operations
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.shm import layout

HEADER_BYTES = layout.DESCRIPTOR_BYTES


class Counting:
    """A communicator that notes what is sent."""

    def __init__(self, comm):
        self._comm = comm
        self.sent = []

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Isend(self, data, rank, tag):
        self.sent.append((rank, data.nbytes))
        return self._comm.Isend(data, rank, tag)


def line(count=100, kind="float32"):
    words = np.zeros(layout.DESCRIPTOR_WORDS, np.int64)
    descriptor.fill(words, descriptor.signature("Allreduce", kind, operations.SUM_), count, (), 0)
    return words


def until(*tests, seconds=10.0):
    limit = time.monotonic() + seconds
    waiting = list(tests)
    while waiting:
        waiting = [test for test in waiting if not test()]
        assert time.monotonic() < limit


@pytest.mark.ranks(2, 3, 5)
def test_what_is_sent_arrives_in_order_and_each_first_message_has_a_header(comm):
    own = comm.Dup()
    counting = Counting(own)
    channel = Channel(counting)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for call in range(3):
        channel.begin(line(call))
        counting.sent.clear()
        lengths = [0, 1, 63, 5000, 0]
        into = [Guarded(n, "float64") for n in lengths]
        receives = [channel.receive(left, each.array) for each in into]
        sends = [channel.send(right, values(10 * call + comm.rank, n, "float64")) for n in lengths]
        until(*reversed(receives), *sends)
        for n, each in zip(lengths, into, strict=True):
            assert np.array_equal(each.array, values(10 * call + left, n, "float64")) and each.intact()
        assert counting.sent == [(right, HEADER_BYTES), *((right, 8 * n) for n in lengths)]
    own.Free()


@pytest.mark.ranks(3)
def test_each_pair_and_direction_has_its_own_header(comm):
    own = comm.Dup()
    counting = Counting(own)
    channel = Channel(counting)
    channel.begin(line())
    others = [rank for rank in range(3) if rank != comm.rank]
    for _ in range(2):
        into = {rank: np.zeros(4, np.int64) for rank in others}
        tests = [channel.receive(rank, into[rank]) for rank in others]
        tests += [channel.send(rank, np.arange(4) + 100 * comm.rank) for rank in others]
        until(*tests)
        assert all(np.array_equal(into[rank], np.arange(4) + 100 * rank) for rank in others)
    assert sorted(nbytes for _, nbytes in counting.sent) == [32] * 4 + [HEADER_BYTES] * 2
    own.Free()


@pytest.mark.ranks(2)
def test_without_a_line_there_are_no_headers(comm):
    own = comm.Dup()
    counting = Counting(own)
    channel = Channel(counting)
    channel.begin(line())
    channel.begin(None)
    got = np.zeros(3)
    until(channel.receive(1 - comm.rank, got), channel.send(1 - comm.rank, np.arange(3) + 7.0 * comm.rank))
    assert np.array_equal(got, np.arange(3) + 7.0 * (1 - comm.rank))
    assert counting.sent == [(1 - comm.rank, 24)]
    own.Free()


DIFFERENT = {
    "count": (101, "float32", 100, 101),
    "kind": (100, "int32", 100, 100),
    "longer": (100_000, "float32", 100, 100_000),
    "shorter": (7, "float32", 100, 7),
    "empty": (0, "float32", 100, 0),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.both_mpis_whole
def test_another_call_is_noticed_on_both_sides_before_its_data_is_looked_at(comm, what):
    count, kind, here, there = DIFFERENT[what]
    own = comm.Dup()
    own.Set_errhandler(MPI.ERRORS_RETURN)
    channel = Channel(own)
    channel.begin(line() if comm.rank == 0 else line(count, kind))
    n = here if comm.rank == 0 else there
    receive = channel.receive(1 - comm.rank, np.zeros(n, np.float32))
    send = channel.send(1 - comm.rank, np.ones(n, np.float32))
    for thing in (receive, send, own):  # data may still be on its way
        keep_for_ever(thing)
    with pytest.raises(Mismatch):
        until(receive)
    comm.Barrier()


@pytest.mark.ranks(2)
def test_the_header_is_that_of_the_moment_of_begin(comm):
    own = comm.Dup()
    channel, words = Channel(own), line()
    channel.begin(words)
    words[:] = 99  # the engine's line is used for other things during a call
    got = np.zeros(1)
    until(channel.receive(1 - comm.rank, got), channel.send(1 - comm.rank, np.ones(1)))
    assert got[0] == 1
    own.Free()


@pytest.mark.ranks(5)
def test_a_group_has_its_own_numbers(comm):
    own = comm.Dup()
    ranks = [4, 1, 2]
    if comm.rank in ranks:
        channel = Channel(own, ranks)
        assert (channel.size, channel.rank) == (3, ranks.index(comm.rank))
        channel.begin(line())
        got = np.zeros(1, np.int64)
        right, left = (channel.rank + 1) % 3, (channel.rank - 1) % 3
        until(channel.receive(left, got), channel.send(right, np.array([comm.rank])))
        assert got[0] == ranks[left]
    own.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("limit", [1, 999, 1000, 1001])
def test_what_is_too_large_for_one_message_goes_in_several(comm, limit):
    own = comm.Dup()
    counting = Counting(own)
    channel = Channel(counting)
    before, module.LIMIT = module.LIMIT, limit
    try:
        for n in (0, 1, 1000, 2000, 2003) if limit > 1 else (0, 1, 9):
            channel.begin(line(n))
            counting.sent.clear()
            into = Guarded(n, "int16")
            until(
                channel.receive(1 - comm.rank, into.array), channel.send(1 - comm.rank, values(comm.rank, n, "int16"))
            )
            assert np.array_equal(into.array, values(1 - comm.rank, n, "int16")) and into.intact()
            assert len(counting.sent) == 1 + max(1, -(-n // limit))
            assert max(nbytes for _, nbytes in counting.sent[1:]) <= 2 * limit
    finally:
        module.LIMIT = before
    own.Free()


@pytest.mark.ranks(2)
def test_tests_may_be_asked_again_after_they_were_true(comm):
    own = comm.Dup()
    channel = Channel(own)
    channel.begin(line())
    tests = [channel.receive(1 - comm.rank, np.zeros(3)), channel.send(1 - comm.rank, np.ones(3))]
    until(*tests)
    assert all(test() for test in tests for _ in range(3))
    own.Free()


@pytest.mark.ranks(2)
def test_data_lives_until_it_is_sent(comm):
    """Large messages wait for their receive; what was sent is a temporary."""
    own = comm.Dup()
    channel = Channel(own)
    channel.begin(line())
    n = 500_000
    if comm.rank == 0:
        sent = channel.send(1, values(3, n, "float64") * 1.0)
        rubbish = [np.full(n, np.nan) for _ in range(4)]
        comm.Barrier()
        until(sent)
        del rubbish
    else:
        comm.Barrier()
        got = np.zeros(n)
        until(channel.receive(0, got))
        assert np.array_equal(got, values(3, n, "float64"))
    own.Free()


@pytest.mark.ranks(1)
def test_scratch_is_kept_by_name(comm):
    channel = Channel(comm)
    first = channel.scratch("a", 100, np.float64)
    first[:] = 5
    assert (first.size, first.dtype) == (100, np.float64) and first.flags.c_contiguous and first.flags.aligned
    other = channel.scratch("b", 100, np.float64)
    assert not np.shares_memory(first, other)
    smaller = channel.scratch("a", 30, np.complex128)
    assert smaller.ctypes.data == first.ctypes.data and (smaller.size, smaller.dtype) == (30, np.complex128)
    channel.begin(None)
    assert channel.scratch("a", 100, np.float64).ctypes.data == first.ctypes.data
    larger = channel.scratch("a", 101, np.float64)
    larger[:] = 1
    assert (first == 5).all() and not np.shares_memory(first, larger)  # who still has the old memory keeps it
    assert channel.scratch("c", 0, np.float32).size == 0
