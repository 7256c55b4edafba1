"""Two servers on real ranks, and a worker that falls silent: both drop it at the same place, and nothing is torn."""

import os

import numpy as np
import pytest
from harness.failures import FakeFailures

import psgd

DEAD, LAST = 4, 99  # the rank that falls silent, and the tag of its last word
SERVERS = 2


class Failures(FakeFailures):
    """Calls the rank dead on a server once its last word has come there."""

    def __init__(self, comm, tag):
        super().__init__(comm.size)
        self._comm, self._tag = comm, tag

    def failed(self):
        if not self._dead and self._comm.rank < SERVERS and self._comm.Iprobe(DEAD, self._tag):
            self._comm.Recv(bytearray(1), DEAD, self._tag)
            self.kill(DEAD)
        return super().failed()


class Hand:
    """Keeps what it is told."""

    def __init__(self, comm, tag):
        self.failures, self.told, self.ends = Failures(comm, tag), [], None

    def started(self):
        pass

    def lost(self, worker, applied, waiting, takers):
        self.told.append((worker, applied[worker], sum(applied)))
        return 1, {taker: np.array([sum(applied)]) for taker in takers}

    def pushed(self, worker, drawn):
        pass

    def waiting(self, act, **when):
        return act

    def receive(self, words):
        self.told.append(words.tolist())


@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.ranks(5)
def test_the_others_go_on(comm, shared):
    os.environ["PSGD_SHARED"] = shared
    for tag, strategy, size in ((LAST, "async", 5), (LAST + 1, "sync", 70_000), (LAST + 2, "ssp", 70_000)):
        hand, params = Hand(comm, tag), np.zeros(size)
        connection = psgd.connect(
            comm, params, strategy=strategy, servers=SERVERS, lr=0.5, segment_bytes=1 << 16, clip_norm=1e9
        )
        connection.mesh.survival = hand
        if comm.rank == DEAD:
            ps = connection.__enter__()
            for _ in range(3):
                ps.grads[:] = 1
                ps.step(samples=4)
            for server in range(SERVERS):
                comm.Send(b"x", server, tag)
            comm.Barrier()
            continue
        with connection as ps:
            for _ in range(60):
                ps.grads[:] = 1
                ps.step(samples=4)
            while not hand.told:
                ps.step(samples=0)
        told = hand.told
        assert len(told) == 1
        if comm.rank < SERVERS:
            while not hand.failures.failed():  # it may have heard of it from the other
                pass
            assert told[0][:2] == (2, 12)
            comm.Send(np.array([told[0][2]]), 1 - comm.rank, 7)
            other = np.zeros(1, np.int64)
            comm.Recv(other, 1 - comm.rank, 7)
            assert other[0] == told[0][2], "both drop it at the same place in the order"
        expected = {"async": 123, "sync": 60, "ssp": 41}[strategy]
        np.testing.assert_allclose(params, -0.5 * expected)
        comm.Barrier()
    del os.environ["PSGD_SHARED"]
    comm.Barrier()
