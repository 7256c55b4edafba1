"""The loop that survives servers, in one process: what is withdrawn, what is answered once more, and when it ends."""

from collections import deque

import numpy as np
import pytest

from psgd import strategies
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.server.replicas.replicated_server import ReplicatedServer
from psgd.server.replicas.replicated_server_side import LostServer
from psgd.server.server import ServerOptions
from psgd.server.shard import Shard
from psgd.server.surviving.hand_over import Lost
from psgd.server.wire import Header, MessageKind


class FakeWire:
    """Events in a list; a gradient is 1 everywhere. Fills in what headers must say of earlier ones."""

    def __init__(self, events):
        self.events, self.replies, self.bounced = deque(events), [], []
        self.begun, self.versions, self.pushes = False, {}, {}

    def next(self):
        event = self.events.popleft()
        if isinstance(event, Header):
            w = event.worker
            if event.kind == MessageKind.PUSH:
                self.pushes[w] = self.pushes.get(w, 0) + 1
            event.push, event.version = self.pushes.get(w, 0), self.versions.get(w, 0)
            event.position = 10 * event.push
        return event

    def bounce(self, worker):
        self.bounced.append(worker)
        self.pushes[worker] -= 1

    def whole(self, worker):
        return True

    def fetch(self, worker, segment):
        return np.full(2, 1.0 if self.begun else 0.0)

    def settle(self, segment):
        pass

    def reply(self, workers, header):
        for worker in workers:
            self.versions[worker] = header.version
            self.replies.append((worker, MessageKind(header.kind).name))

    def emit(self, workers, segment):
        pass

    def tell(self, messages):
        pass

    def drain(self):
        pass


class Hand:
    def __init__(self):
        self.servers = []

    def started(self):
        pass

    def lost_server(self, server):
        self.servers.append(server)

    def lost(self, worker, applied, waiting, takers):
        return 0, {}


def of(kind, *workers):
    samples = 10 if kind == "PUSH" else 0
    return [Header(kind=MessageKind[kind], worker=worker, samples=samples) for worker in workers]


def serve(strategy, events, workers=2, **options):
    wire, hand = FakeWire([*of("INIT", 0), *of("PULL", *range(1, workers)), *events]), Hand()
    shard = Shard(np.zeros(2), OptimizerOptions(rules.sgd(), schedules.constant(1.0)), segment=2)
    policy = strategies.create(strategy, workers, **options)
    server = ReplicatedServer(wire, shard, policy, ServerOptions(workers))
    server.hand_over = hand
    server.run()
    assert not wire.events
    return wire, hand, server


def test_what_waits_in_a_group_is_pushed_again():
    end = [*of("DONE", 0, 1), *of("BYE", 1, 0)]
    wire, hand, server = serve("sync", [*of("PUSH", 0), LostServer(1), *of("PUSH", 1, 0), *end])
    assert wire.bounced == [0] and hand.servers == [1]
    assert server.metrics.pushes == [1, 1] and server.metrics.dropped == [0, 0]
    assert server.metrics.push_numbers.applied == server.metrics.push_numbers.newest == [1, 1]
    np.testing.assert_array_equal(server.shard.params, -1.0)


@pytest.mark.parametrize("strategy", ["async", "ssp", "softsync"])
def test_what_was_applied_is_not(strategy):
    events = [*of("PUSH", 0), LostServer(0), *of("PUSH", 1), *of("DONE", 0, 1), *of("BYE", 0, 1)]
    options = {"softsync": {"softsync": 2}, "ssp": {"staleness": 1}}.get(strategy, {})
    wire, _, server = serve(strategy, events, **options)
    assert wire.bounced == [] and server.metrics.pushes == [1, 1]
    np.testing.assert_array_equal(server.shard.params, {"async": -2.0}.get(strategy, -1.0))


def test_one_who_asks_once_more_is_answered_and_an_open_group_stays_open():
    events = [*of("PUSH", 0), *of("REPEAT", 0), *of("PUSH", 1), *of("DONE", 0, 1), *of("BYE", 0, 1)]
    wire, _, server = serve("softsync", events, softsync=2)
    assert wire.replies[2:5] == [(0, "REPLY"), (0, "REPLY"), (1, "REPLY")]
    assert server.metrics.steps == 1


def test_it_stays_until_each_one_has_the_end_or_is_dead():
    events = [*of("DONE", 0, 1), LostServer(0), *of("REPEAT", 1), *of("BYE", 1), Lost(0)]
    wire, _, _ = serve("async", events)
    assert wire.replies[2:] == [(0, "END"), (1, "END"), (1, "END")]
