"""A worker's exchange as three spans without a gap, each where it belongs."""

import time
from types import SimpleNamespace

import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.metrics.trace.event_ring import KINDS, EventRing, parse
from psgd.server.transports.traced_exchange import TracedExchanges


class Transport:
    """An exchange that pushes for 2 ms, waits for two servers of 4 ms each, and pulls for 3 ms."""

    def __init__(self):
        self._waiter, self._eager = Waiter(False), range(1000)

    def exchange(self, kind, with_grads):
        assert len(self._eager) == 0
        time.sleep(0.002)
        for _ in range(2):
            ready = time.perf_counter() + 0.004
            self._waiter.until(lambda ready=ready: time.perf_counter() >= ready)
        time.sleep(0.003)
        self._waiter.flowing(lambda: True)
        return SimpleNamespace(kind=kind, with_grads=with_grads)


def test_an_exchange_is_a_push_a_wait_and_a_pull():
    ring, transport = EventRing(None, {}, 16), Transport()
    TracedExchanges(transport).attach(ring)
    for kind in (1, 2):
        answer = transport.exchange(kind, with_grads=True)
        assert (answer.kind, answer.with_grads) == (kind, True)
    _, events = parse(ring.content())
    assert [KINDS[kind] for kind in events["kind"]] == ["push", "wait", "pull"] * 2
    assert (events["start"][1:3] == events["stop"][:2]).all()
    seconds = events["stop"] - events["start"]
    assert (seconds[:3] >= [0.0019, 0.0079, 0.0029]).all()  # two clocks


def test_an_exchange_that_fails_shows_what_it_was_doing():
    def lost():
        time.sleep(0.002)
        raise ConnectionError

    ring, transport = EventRing(None, {}, 16), Transport()
    transport.exchange = lambda: transport._waiter.until(lost)
    TracedExchanges(transport).attach(ring)
    with pytest.raises(ConnectionError):
        transport.exchange()
    _, events = parse(ring.content())
    seconds = dict(zip((KINDS[kind] for kind in events["kind"]), events["stop"] - events["start"], strict=True))
    assert seconds["wait"] >= 0.002 > seconds["push"] + seconds["pull"]
