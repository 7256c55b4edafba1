import numpy as np
import pytest
from harness.channel import Channel, cases, check_allreduce, check_rounding, drive, nans, same_bits, values
from harness.channel import expected as oracle
from mpi4py import MPI

from psgd.collectives.algorithms import rabenseifner
from psgd.collectives.arguments import operations

SUM = operations.resolve(MPI.SUM)


@pytest.mark.ranks(1, 2, 3, 4, 5)
def test_allreduce(comm):
    for n, dtype, op in cases(comm.size, 17, 33, 1023, 4097, 100_003):
        check_allreduce(comm, rabenseifner.allreduce, n, dtype, op)


@pytest.mark.ranks(2, 3, 5)
def test_rounding(comm):
    check_rounding(comm, rabenseifner.allreduce, 4097)


@pytest.mark.ranks(2, 3, 4)
def test_order_of_blocks(comm):
    """Halving pairs distant places first: (0 2) (1 3) on four ranks."""
    size = comm.size
    everyone = np.random.default_rng(5).choice(np.float32([1e8, -1e8, 1, 3]), (size, 300))
    a = [everyone[rank] for rank in range(size)]
    wanted = {2: lambda: a[0] + a[1], 3: lambda: (a[0] + a[1]) + a[2], 4: lambda: (a[0] + a[2]) + (a[1] + a[3])}[size]()
    recv, channel = np.empty(300, np.float32), Channel(comm)
    drive(channel, rabenseifner.allreduce(channel, everyone[comm.rank].copy(), recv, SUM))
    assert recv.tobytes() == wanted.tobytes()


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("in_place", [False, True])
def test_nans_are_the_same_everywhere(comm, in_place):
    channel, recv, send = Channel(comm), np.empty(1003, np.float32), nans(comm.rank, 1003)
    recv[:] = send
    drive(channel, rabenseifner.allreduce(channel, recv if in_place else send, recv, SUM))
    assert np.isnan(recv).all()
    assert same_bits(comm, recv)


@pytest.mark.ranks(2, 3, 4, 5)
def test_bytes_and_messages(comm):
    size, n = comm.size, 640
    places = 4 if size >= 4 else 2
    steps, pairs = places.bit_length() - 1, size - places
    channel, send = Channel(comm), values(comm.rank, n, "float64")
    drive(channel, rabenseifner.allreduce(channel, send, np.empty(n), SUM))
    moved = 2 * (places - 1) * send.nbytes // places
    paired, even = comm.rank < 2 * pairs, comm.rank % 2 == 0
    assert channel.nbytes == (send.nbytes if paired and even else moved + paired * send.nbytes)
    assert channel.sent == (1 if paired and even else 2 * steps + paired)


@pytest.mark.ranks(4, 5)
def test_slow_ranks(comm):
    rng = np.random.default_rng(comm.rank)
    for n in (0, 1, 257, 1023):
        channel, recv = Channel(comm), np.empty(n)
        steps = rabenseifner.allreduce(channel, values(comm.rank, n, "float64"), recv, SUM)
        drive(channel, steps, lambda: float(rng.choice([0, 1e-3])))
        assert np.array_equal(recv, oracle(comm.size, n, "float64", "SUM"))
