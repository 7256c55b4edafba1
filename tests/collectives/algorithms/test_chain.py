import numpy as np
import pytest
from harness.channel import Channel, Guarded, drive, sizes, values

from psgd.collectives.algorithms import chain

LARGE = {1: (), 7: (1023,), 1000: (1023, 4097, 100_003)}


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("segment", [1, 7, 1000])
def test_bcast(comm, segment):
    channel = Channel(comm)
    for root in range(comm.size):
        for n in sizes(comm.size, *LARGE[segment]):
            wanted, data = values(root, n, "float32"), Guarded(n, "float32")
            data.array[:] = wanted if comm.rank == root else 0
            drive(channel, chain.bcast(channel, data.array, root, segment))
            assert np.array_equal(data.array, wanted)
            assert data.intact()


@pytest.mark.ranks(1, 2, 5)
def test_bytes_and_messages(comm):
    for root in range(comm.size):
        channel, data = Channel(comm), np.ones(1001)
        drive(channel, chain.bcast(channel, data, root, 100))
        last = (root - 1) % comm.size
        assert channel.sent == (0 if comm.rank == last else 11)
        assert channel.nbytes == (0 if comm.rank == last else data.nbytes)
        assert channel.most_open <= 2 * chain.AHEAD


@pytest.mark.ranks(3)
def test_segments_are_sent_on_while_others_come(comm):
    channel = Channel(comm)
    drive(channel, chain.bcast(channel, np.ones(1000), 0, 100))
    if comm.rank == 1:
        assert channel.log[: chain.AHEAD] == ["receive"] * chain.AHEAD
        first = channel.log.index("send")
        assert channel.log[:first].count("done receive") == 1
        assert channel.log[:first].count("receive") == chain.AHEAD + 1


@pytest.mark.ranks(3, 5)
def test_slow_ranks(comm):
    rng = np.random.default_rng(comm.rank)
    for root in range(comm.size):
        channel, data = Channel(comm), values(comm.rank, 257, "float64")
        drive(channel, chain.bcast(channel, data, root, 16), lambda: float(rng.choice([0, 0, 1e-3])))
        assert np.array_equal(data, values(root, 257, "float64"))


@pytest.mark.ranks(3)
def test_an_empty_array_is_a_message_too(comm):
    channel = Channel(comm)
    drive(channel, chain.bcast(channel, np.empty(0), 0, 16))
    assert channel.sent == (comm.rank < 2)
