"""The server's wire on real ranks, one of which falls silent and is called dead: nothing waits for it any more."""

import os

import numpy as np
import pytest
from harness.failures import FakeFailures

import psgd
from psgd.kernels.errors import PeerLostError
from psgd.server.transports.gradient_memory import allocate

DEAD, LAST = 2, 99  # the rank that falls silent, and the tag of its last word


class Failures(FakeFailures):
    """Calls the rank dead once its last word has come."""

    def __init__(self, comm):
        super().__init__(comm.size)
        self._comm = comm

    def failed(self):
        if not self._dead and self._comm.rank == 0 and self._comm.Iprobe(DEAD, LAST):
            self._comm.Recv(bytearray(1), DEAD, LAST)
            self.kill(DEAD)
        return super().failed()


class Hand:
    """Tells each taker the number of samples that were applied, and keeps what it is told."""

    def __init__(self, comm):
        self.failures, self.told, self.ends = Failures(comm), [], None

    def started(self):
        pass

    def lost(self, worker, applied, waiting, takers):
        self.told.append((worker, applied))
        return 1, {taker: np.array([sum(applied)]) for taker in takers}

    def pushed(self, worker, drawn):
        pass

    def waiting(self, act, **when):
        return act

    def receive(self, words):
        self.told.append(words.tolist())


@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize("size", [5, 70_000])
@pytest.mark.ranks(3)
def test_the_others_go_on(comm, size, shared):
    os.environ["PSGD_SHARED"] = shared
    hand, params = Hand(comm), np.zeros(size)
    connection = psgd.connect(comm, params, strategy="async", servers=1, lr=0.5, segment_bytes=1 << 16)
    connection.mesh.survival = hand
    if comm.rank == DEAD:
        ps = connection.__enter__()
        for _ in range(3):
            ps.grads[:] = 1
            ps.step(samples=4)
        comm.Send(b"x", 0, LAST)
        del os.environ["PSGD_SHARED"]
        comm.Barrier()
        return
    with connection as ps:
        for _ in range(200):
            ps.grads[:] = 1
            ps.step(samples=4)
        while not hand.told:
            ps.step(samples=0)
        assert hand.told[0][0] >= 12
    assert len(hand.told) == 1
    if comm.rank == 0:
        assert hand.told[0][0] == 1 and hand.told[0][1][1] == 12
    np.testing.assert_array_equal(params, -0.5 * 203)
    del os.environ["PSGD_SHARED"]
    comm.Barrier()


@pytest.mark.ranks(3)
def test_who_never_came_is_an_error(comm):
    hand, params = Hand(comm), np.zeros(5)
    connection = psgd.connect(comm, params, strategy="async", servers=1)
    connection.mesh.survival = hand
    if comm.rank == DEAD:
        comm.Send(b"x", 0, LAST)
        allocate(connection.mesh, params.size, params.dtype)  # its part of what all do together at the start
        connection._teardown.listen()
        connection._teardown.waiter()
    else:
        with (
            pytest.raises(PeerLostError, match="worker 1 ended before all" if comm.rank == 0 else None),
            connection as ps,
        ):
            ps.step()
    comm.Barrier()
