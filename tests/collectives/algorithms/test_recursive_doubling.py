import numpy as np
import pytest
from harness.channel import Channel, cases, check_allreduce, check_rounding, drive, nans, same_bits, values
from mpi4py import MPI

from psgd.collectives.algorithms import recursive_doubling
from psgd.collectives.algorithms.folding import Folding
from psgd.collectives.arguments import operations

SUM = operations.resolve(MPI.SUM)


@pytest.mark.ranks(1, 2, 3, 4, 5)
def test_allreduce(comm):
    for n, dtype, op in cases(comm.size, 1023, 4097, 100_003):
        check_allreduce(comm, recursive_doubling.allreduce, n, dtype, op)


@pytest.mark.ranks(2, 3, 5)
def test_rounding(comm):
    check_rounding(comm, recursive_doubling.allreduce, 4097)


@pytest.mark.ranks(2, 3, 5)
def test_lower_ranks_come_first(comm):
    """1e8 swallows a 1, so sums in float32 tell their order. Of five ranks, 0 and 1 are one."""
    size = comm.size
    everyone = np.random.default_rng(5).choice(np.float32([1e8, -1e8, 1, 3]), (size, 300))
    a = [everyone[rank] for rank in range(size)]
    wanted = {
        2: lambda: a[0] + a[1],
        3: lambda: (a[0] + a[1]) + a[2],
        5: lambda: ((a[0] + a[1]) + a[2]) + (a[3] + a[4]),
    }[size]()
    recv, channel = np.empty(300, np.float32), Channel(comm)
    drive(channel, recursive_doubling.allreduce(channel, everyone[comm.rank].copy(), recv, SUM))
    assert recv.tobytes() == wanted.tobytes()


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.parametrize("in_place", [False, True])
def test_nans_are_the_same_everywhere(comm, in_place):
    for op in (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX):
        channel, recv, send = Channel(comm), np.empty(1003, np.float32), nans(comm.rank, 1003)
        recv[:] = send
        steps = recursive_doubling.allreduce(channel, recv if in_place else send, recv, operations.resolve(op))
        drive(channel, steps)
        assert np.isnan(recv).all()
        assert same_bits(comm, recv)


@pytest.mark.ranks(1, 2, 3, 4, 5)
def test_bytes_and_messages(comm):
    channel, send = Channel(comm), values(comm.rank, 100, "float64")
    drive(channel, recursive_doubling.allreduce(channel, send, np.empty(100), SUM))
    messages = {1: [0], 2: [1, 1], 3: [1, 2, 1], 4: [2] * 4, 5: [1, 3, 2, 2, 2]}[comm.size][comm.rank]
    assert channel.sent == messages
    assert channel.nbytes == messages * 800


@pytest.mark.ranks(2, 5)
def test_an_empty_call_is_noticed_by_all_partners(comm):
    channel = Channel(comm)
    drive(channel, recursive_doubling.allreduce(channel, np.empty(0), np.empty(0), SUM))
    assert channel.sent >= 1
    assert channel.nbytes == 0


@pytest.mark.parametrize("size", range(1, 34))
def test_folding(size):
    """Partners name each other, places keep the order of ranks, and pairs are all that sits out."""
    folded = [Folding(rank, size) for rank in range(size)]
    places = folded[0].places
    assert places <= size < 2 * places
    active = [rank for rank in range(size) if rank >= 2 * (size - places) or rank % 2]
    assert [folded[rank].place for rank in active] == list(range(places))
    for rank in active:
        assert len(folded[rank].bits) == places.bit_length() - 1
        for bit in folded[rank].bits:
            partner = folded[rank].partner(bit)
            assert partner in active
            assert folded[partner].partner(bit) == rank
            assert folded[partner].place == folded[rank].place ^ bit
