"""Servers on real ranks that fall silent and are called dead: what was answered stays, and the run goes on."""

import os

import numpy as np
import pytest
from harness.failures import FakeFailures

import psgd

LAST = 90


class Failures(FakeFailures):
    """Calls a rank dead here once its last word has come, which says from which rank on its death counts."""

    def __init__(self, comm, tag):
        super().__init__(comm.size)
        self._comm, self._tag = comm, tag

    def failed(self):
        for rank in list(self._living):
            if self._comm.Iprobe(rank, self._tag):
                self._comm.Recv(bytearray(1), rank, self._tag)
                self.kill(rank)
        return super().failed()


class Hand:
    """Keeps what it is told."""

    def __init__(self, comm, tag):
        self.failures, self.ends, self.lost_servers = Failures(comm, tag), None, []

    def started(self):
        pass

    def lost_server(self, server):
        self.lost_servers.append(server)

    def lost(self, worker, applied, waiting, takers):
        return 0, {}

    def pushed(self, worker, drawn):
        pass

    def waiting(self, act, **when):
        return act

    def receive(self, words):
        pass


class SilentError(Exception):
    """Ends a server's loop at a place of its own."""


def falls_silent(connection, version):
    """The server stops for good when it has applied so many groups, right after its answers."""
    told = connection.metrics.progress

    def progress(samples, steps, lr):
        told(samples, steps, lr)
        if steps == version:
            raise SilentError

    connection.metrics.progress = progress


def falls_silent_in_norm(connection, number):
    """The server stops for good once it has told one other of its part of that norm."""
    serve = connection._serve

    def serves(serving):
        norms = serving.transport.norms
        start = norms._start

        def starts(server, request):
            start(server, request)
            if norms._numbered == number and server in norms._sends:
                raise SilentError

        norms._start = starts
        return serve(serving)

    connection._serve = serves


CLIP = 10.0
CASES = [  # strategy, number of elements, number of servers, which fall silent at which version or norm
    ("async", 70_000, 2, {0: 20}, 0.0),
    ("sync", 70_000, 2, {1: 9}, 0.0),
    ("ssp", 5_000, 3, {0: 20, 1: 31}, 0.0),
    ("softsync", 70_000, 3, {1: 20, 2: 40}, 0.0),
    ("async", 5_000, 4, {0: 11}, CLIP),
    ("sync", 70_000, 3, {1: 9}, CLIP),
]


@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.ranks(5)
def test_no_push_that_was_answered_is_lost(comm, shared):
    os.environ["PSGD_SHARED"] = shared
    for number, (strategy, size, servers, silent, clip) in enumerate(CASES):
        tag, steps = LAST + number, 40
        hand, params = Hand(comm, tag), np.zeros(size)
        own = {"softsync": 2} if strategy == "softsync" else {}
        connection = psgd.connect(
            comm,
            params,
            strategy=strategy,
            servers=servers,
            lr=0.5,
            segment_bytes=1 << 16,
            rule="momentum",
            clip_norm=clip,
            **own,
        )
        connection.mesh.survival, connection.mesh.replicas = hand, 1
        if comm.rank in silent:
            (falls_silent_in_norm if clip else falls_silent)(connection, silent[comm.rank])
            connection._teardown.end = lambda error: None
            with pytest.raises(SilentError):
                connection.__enter__()
            for other in range(comm.size):
                if other != comm.rank:
                    comm.Send(b"x", other, tag)
            while len(hand.failures.failed()) < len(silent) - 1:
                pass
            comm.Barrier()
            continue
        with connection as ps:
            for _ in range(steps):
                ps.grads[:] = 1
                ps.step(samples=4)
        if comm.rank < servers:
            assert hand.lost_servers == sorted(silent, key=silent.get)
        workers = comm.size - servers
        groups = {"async": steps * workers, "sync": steps, "ssp": steps * workers, "softsync": steps * workers // 2}
        weight = CLIP / size**0.5 if clip else 1 / workers if strategy == "ssp" else 1.0
        expected, momentum = 0.0, 0.0
        for _ in range(groups[strategy]):
            momentum = 0.9 * momentum + weight
            expected -= 0.5 * momentum
        np.testing.assert_allclose(params, expected, rtol=1e-6)
        while len(hand.failures.failed()) < len(silent):
            pass
        comm.Barrier()
    del os.environ["PSGD_SHARED"]
    comm.Barrier()
