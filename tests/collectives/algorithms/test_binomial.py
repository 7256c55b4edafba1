import numpy as np
import pytest
from harness.channel import Channel, Guarded, cases, drive, nans, sizes, values
from harness.channel import expected as oracle
from mpi4py import MPI

from psgd.collectives.algorithms import binomial
from psgd.collectives.arguments import operations

SUM = operations.resolve(MPI.SUM)


@pytest.mark.ranks(1, 2, 3, 5)
def test_bcast(comm):
    channel = Channel(comm)
    for root in range(comm.size):
        for n in sizes(comm.size, 1023, 4097, 100_003):
            wanted, data = values(root, n, "float32"), Guarded(n, "float32")
            data.array[:] = wanted if comm.rank == root else 0
            drive(channel, binomial.bcast(channel, data.array, root))
            assert np.array_equal(data.array, wanted)
            assert data.intact()


@pytest.mark.ranks(1, 2, 3, 4, 5)
def test_reduce(comm):
    channel = Channel(comm)
    for i, (n, dtype, op) in enumerate(cases(comm.size, 1023, 4097, 100_003)):
        root = i % comm.size
        operation = operations.resolve(op if op == "mean" else getattr(MPI, op))
        mine, wanted = values(comm.rank, n, dtype, op), oracle(comm.size, n, dtype, op)
        for in_place in (False, True):
            out = Guarded(n, dtype)
            out.array[:] = mine
            send = out.array if in_place and comm.rank == root else mine.copy()
            recv = out.array if comm.rank == root else None
            drive(channel, binomial.reduce(channel, send, recv, operation, root))
            assert np.array_equal(out.array, wanted if comm.rank == root else mine)
            assert out.intact()
            assert send is out.array or np.array_equal(send, mine)


@pytest.mark.ranks(2, 3, 4, 5)
def test_reduce_has_the_same_bits_on_every_root(comm):
    """1e8 swallows a 1, and of two NaNs the first stays: the order is that of ranks, wherever the result goes."""
    size, n = comm.size, 300
    everyone = np.random.default_rng(5).choice(np.float32([1e8, -1e8, 1, 3]), (size, n))
    a = [everyone[rank] for rank in range(size)]
    wanted = {
        2: lambda: a[0] + a[1],
        3: lambda: (a[0] + a[1]) + a[2],
        4: lambda: (a[0] + a[1]) + (a[2] + a[3]),
        5: lambda: ((a[0] + a[1]) + (a[2] + a[3])) + a[4],
    }[size]()
    channel, seen = Channel(comm), set()
    for root in range(size):
        for send in (everyone[comm.rank].copy(), nans(comm.rank, n)):
            recv = np.empty(n, np.float32) if comm.rank == root else None
            drive(channel, binomial.reduce(channel, send, recv, SUM, root))
            got = comm.bcast(recv, root)
            if np.isnan(got).any():
                seen.add(got.tobytes())
            else:
                assert got.tobytes() == wanted.tobytes()
    assert len(seen) == 1


@pytest.mark.ranks(1, 2, 3, 5)
def test_bytes_and_messages(comm):
    size, n = comm.size, 50
    for root in range(size):
        channel, data = Channel(comm), np.ones(n)
        drive(channel, binomial.bcast(channel, data, root))
        sent = comm.allgather(channel.sent)
        assert sum(sent) == size - 1
        assert max(sent) == sent[root] == (size - 1).bit_length()
        assert channel.nbytes == channel.sent * data.nbytes
        channel = Channel(comm)
        drive(channel, binomial.reduce(channel, data, np.empty(n) if comm.rank == root else None, SUM, root))
        assert channel.sent == (comm.rank != root)
        assert channel.nbytes == channel.sent * data.nbytes


@pytest.mark.ranks(5)
def test_slow_ranks(comm):
    rng = np.random.default_rng(comm.rank)
    for root in range(comm.size):
        channel, send = Channel(comm), values(comm.rank, 100, "float64")
        recv = np.empty(100) if comm.rank == root else None
        steps = binomial.reduce(channel, send, recv, SUM, root)
        drive(channel, steps, lambda: float(rng.choice([0, 2e-3])))
        assert recv is None or np.array_equal(recv, oracle(comm.size, 100, "float64", "SUM"))


@pytest.mark.ranks(3)
def test_empty_arrays_are_messages_too(comm):
    channel = Channel(comm)
    drive(channel, binomial.bcast(channel, np.empty(0), 0))
    assert channel.sent == (2 if comm.rank == 0 else 0)
    drive(channel, binomial.reduce(channel, np.empty(0), np.empty(0) if comm.rank == 0 else None, SUM, 0))
    assert channel.sent == (2 if comm.rank == 0 else 1)
