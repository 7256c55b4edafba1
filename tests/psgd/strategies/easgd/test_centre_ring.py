"""The centre and its head on their way round; `test_round_robin.py` has what the workers do with them."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.kernels.errors import PeerLostError
from psgd.strategies.easgd.centre_ring import CentreRing

N, WORDS = 7, 3


def made(comm, check=lambda: None):
    params = np.full(N, 10.0 + comm.rank)
    context = SimpleNamespace(workers=comm, params=params, alarm=SimpleNamespace(check=check))
    return CentreRing(context, WORDS), params


def turn(ring, last):
    """Adds 1 to the centre and 2 to the head, and sends both on, but for the last turn of all."""
    ring.receive()
    came = ring.incoming[0], ring.head[0]
    np.add(ring.incoming, 1, out=ring.centre)
    ring.head += 2
    if not (last and ring.right == 0):
        ring.send()
        ring.wait_sent()
    if not last:
        ring.expect()
    return came


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("resumed", [False, True])
def test_each_gets_what_the_one_before_it_sent(comm, resumed):
    ring, params = made(comm)
    if resumed and comm.rank == comm.size - 1:
        ring.centre[:], ring.head[:] = 40.0, 5.0
    ring.begin(params, resumed)
    first, head = (40.0, 5.0) if resumed else (10.0, 0.0)
    np.testing.assert_array_equal(params, 10.0 + comm.rank if resumed else 10.0)
    for clock in range(3):
        ring.check()
        turns = clock * comm.size + comm.rank
        assert turn(ring, last=clock == 2) == (first + turns, head + 2 * turns)
    sent, received = 3 - (ring.right == 0), 3 - (comm.rank == 0)
    message = 8 * (N + WORDS)
    assert (ring.bytes_sent, ring.bytes_received) == (sent * message, received * message)
    ring.close()


@pytest.mark.ranks(2)
def test_who_waits_for_the_centre_hears_that_another_failed(comm):
    lost = []

    def check():
        if lost:
            raise PeerLostError("worker 0 failed")

    ring, params = made(comm, check)
    ring.begin(params, False)
    ring.check()
    lost.append(0)
    if comm.rank == 1:
        with pytest.raises(PeerLostError, match="worker 0 failed"):
            ring.receive()
    ring.close()
