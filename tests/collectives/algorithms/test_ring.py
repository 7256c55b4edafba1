import numpy as np
import pytest
from harness.channel import (
    Channel,
    Guarded,
    cases,
    check_allreduce,
    check_rounding,
    drive,
    nans,
    same_bits,
    sizes,
    values,
)
from harness.channel import expected as oracle
from mpi4py import MPI

from psgd.collectives.algorithms import ring
from psgd.collectives.arguments import operations
from psgd.collectives.mpi.split import split

SUM = operations.resolve(MPI.SUM)
LARGE = {1: (), 7: (1023,), 1000: (1023, 4097, 100_003)}


def allreduce(segment):
    return lambda channel, send, recv, op: ring.allreduce(channel, send, recv, op, segment)


def cuts(n, size):
    """Even parts; uneven ones, the first of them empty; all for one."""
    bounds = [0, *(n * (i - 1) ** 2 // max(1, size - 1) ** 2 for i in range(1, size)), n]
    lonely = min(1, size - 1)
    return [
        split(n, size),
        [range(bounds[i], bounds[i + 1]) for i in range(size)],
        [range(n) if rank == lonely else range(n * (rank > lonely), n * (rank > lonely)) for rank in range(size)],
    ]


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("segment", [1, 7, 1000])
def test_allreduce(comm, segment):
    for n, dtype, op in cases(comm.size, *LARGE[segment]):
        check_allreduce(comm, allreduce(segment), n, dtype, op)


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("segment", [1, 7, 1000])
def test_reduce_scatter_of_any_parts(comm, segment):
    channel, rank = Channel(comm), comm.rank
    for n, dtype, op in cases(comm.size, *LARGE[segment]):
        operation = operations.resolve(op if op == "mean" else getattr(MPI, op))
        mine, wanted = values(rank, n, dtype, op), oracle(comm.size, n, dtype, op)
        for parts in cuts(n, comm.size):
            own = slice(parts[rank].start, parts[rank].stop)
            recv, send = Guarded(len(parts[rank]), dtype), mine.copy()
            drive(channel, ring.reduce_scatter(channel, send, recv.array, parts, operation, segment))
            assert np.array_equal(recv.array, wanted[own])
            assert recv.intact()
            assert np.array_equal(send, mine)
            both = Guarded(n, dtype)
            both.array[:] = mine
            drive(channel, ring.reduce_scatter(channel, both.array, both.array[own], parts, operation, segment))
            assert np.array_equal(both.array[own], wanted[own])
            assert both.intact()
            both.array[own] = mine[own]
            assert np.array_equal(both.array, mine)


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("segment", [1, 7, 1000])
def test_allgather_of_any_parts(comm, segment):
    channel = Channel(comm)
    for n in sizes(comm.size, *LARGE[segment]):
        for dtype in ("float32", "complex64"):
            for parts in cuts(n, comm.size):
                recv, own = Guarded(n + 5, dtype), parts[comm.rank]  # 5 at the end that belong to nobody
                before = recv.array.tobytes()[n * recv.array.itemsize :]
                wanted = np.concatenate([values(r, n, dtype)[part.start : part.stop] for r, part in enumerate(parts)])
                recv.array[own.start : own.stop] = wanted[own.start : own.stop]
                drive(channel, ring.allgather(channel, recv.array, parts, segment))
                assert np.array_equal(recv.array[:n], wanted)
                assert recv.array.tobytes()[n * recv.array.itemsize :] == before
                assert recv.intact()


@pytest.mark.ranks(2, 3, 5)
def test_order_is_round_the_ring(comm):
    """1e8 swallows a 1: sums in float32 tell the order they were made in."""
    size, n = comm.size, 300
    everyone = np.random.default_rng(3).choice(np.float32([1e8, -1e8, 1, 3]), (size, n))
    recv, channel = np.empty(n, np.float32), Channel(comm)
    drive(channel, ring.allreduce(channel, everyone[comm.rank].copy(), recv, SUM, 7))
    wanted = np.empty_like(recv)
    for chunk, part in enumerate(split(n, size, 16)):
        total = everyone[(chunk + 1) % size, part.start : part.stop].copy()
        for step in range(2, size + 1):
            total += everyone[(chunk + step) % size, part.start : part.stop]
        wanted[part.start : part.stop] = total
    assert recv.tobytes() == wanted.tobytes()


@pytest.mark.ranks(2, 3, 5)
def test_rounding(comm):
    for n in (65, 4097):
        check_rounding(comm, allreduce(100), n)


@pytest.mark.ranks(2, 5)
def test_nans_are_the_same_everywhere(comm):
    channel, recv = Channel(comm), np.empty(1003, np.float32)
    drive(channel, ring.allreduce(channel, nans(comm.rank, 1003), recv, SUM, 100))
    assert np.isnan(recv).all()
    assert same_bits(comm, recv)


@pytest.mark.ranks(2, 3, 5)
def test_bytes_and_messages(comm):
    size = comm.size
    n = 160 * size  # ten segments of 16 in a chunk
    send, recv, each = values(comm.rank, n, "float64"), np.empty(n), n // size * 8
    channel = Channel(comm)
    drive(channel, ring.reduce_scatter(channel, send, recv[: n // size], split(n, size), SUM, 16))
    assert channel.nbytes == (size - 1) * each
    assert channel.sent == (size - 1) * 10
    drive(channel, ring.allgather(channel, recv, split(n, size), 16))
    assert channel.nbytes == 2 * (size - 1) * each
    channel = Channel(comm)
    drive(channel, ring.allreduce(channel, send, recv, SUM, 16))
    assert channel.nbytes * size == 2 * (size - 1) * send.nbytes
    assert channel.sent == 2 * (size - 1) * 10


@pytest.mark.ranks(2, 3, 5)
def test_memory_and_requests_do_not_grow_with_the_array(comm):
    for n in (5000, 50_000):
        channel = Channel(comm)
        drive(channel, ring.allreduce(channel, np.ones(n), np.empty(n), SUM, 100))
        assert channel.scratch_bytes <= 3 * ring.AHEAD * 100 * 8
        assert channel.most_open <= 6 * ring.AHEAD


@pytest.mark.ranks(2, 3, 5)
def test_receives_are_posted_before_sends_and_all_overlap(comm):
    channel = Channel(comm)
    drive(channel, ring.allreduce(channel, np.ones(1000), np.empty(1000), SUM, 1000))
    assert channel.log[:2] == ["receive", "send"]
    assert channel.log.index("send") < channel.log.index("done receive")
    channel = Channel(comm)
    n = 640 * comm.size
    drive(channel, ring.reduce_scatter(channel, np.ones(n), np.empty(640), split(n, comm.size), SUM, 16))
    waits = [i for i, what in enumerate(channel.log) if what == "done receive"]
    for i in waits[: -2 * ring.AHEAD]:  # another receive stands ready whenever one is waited for
        assert channel.log[:i].count("receive") > channel.log[:i].count("done receive") + 1


@pytest.mark.ranks(3, 5)
def test_slow_ranks(comm):
    """Ranks that stop at random places meet all orders of events."""
    rng = np.random.default_rng(comm.rank)
    for n in (0, 1, 257, 1023):
        channel, recv = Channel(comm), np.empty(n)
        steps = ring.allreduce(channel, values(comm.rank, n, "float64"), recv, SUM, 16)
        drive(channel, steps, lambda: float(rng.choice([0, 0, 0, 1e-3])))
        assert np.array_equal(recv, oracle(comm.size, n, "float64", "SUM"))


@pytest.mark.ranks(2, 5)
def test_an_empty_call_is_noticed_by_the_neighbours(comm):
    """Lengths are compared on first messages, so there is one also where there is nothing to send."""
    for parts in (split(0, comm.size), split(1, comm.size)):
        channel, n = Channel(comm), max(part.stop for part in parts)
        drive(channel, ring.reduce_scatter(channel, np.ones(n), np.empty(len(parts[comm.rank])), parts, SUM, 4))
        assert channel.sent >= 1
        channel = Channel(comm)
        drive(channel, ring.allgather(channel, np.ones(n), parts, 4))
        assert channel.sent >= 1
