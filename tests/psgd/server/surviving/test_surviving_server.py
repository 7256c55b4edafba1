"""The loop that survives, in one process: who is answered, what is applied, what is handed over, and when it ends."""

from collections import deque

import numpy as np
import pytest

from psgd import strategies
from psgd.kernels.errors import PeerLostError
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.server.server import ServerOptions
from psgd.server.shard import Shard
from psgd.server.surviving.hand_over import Lost
from psgd.server.surviving.surviving_server import SurvivingServer
from psgd.server.wire import Header, MessageKind

N = 4


class FakeWire:
    """Events in a list; a gradient of worker w is w + 1 everywhere. Fills in what headers must say of earlier ones."""

    def __init__(self, events):
        self.events, self.replies, self.told, self.torn = deque(events), [], [], set()
        self.begun, self.versions, self.drawn, self.pushes = False, {}, {}, {}

    def next(self):
        event = self.events.popleft()
        if isinstance(event, Header):
            w = event.worker
            if event.kind == MessageKind.PUSH:
                self.pushes[w], self.drawn[w] = self.pushes.get(w, 0) + 1, self.drawn.get(w, 0) + event.samples
            event.push, event.position, event.version = (
                self.pushes.get(w, 0),
                self.drawn.get(w, 0),
                self.versions.get(w, 0),
            )
        return event

    def whole(self, worker):
        return worker not in self.torn

    def fetch(self, worker, segment):
        return np.full(N, worker + 1.0 if self.begun else 0.0)

    def settle(self, segment):
        pass

    def reply(self, workers, header):
        for worker in workers:
            self.versions[worker] = header.version
            self.replies.append((worker, MessageKind(header.kind).name, header.view))

    def emit(self, workers, segment):
        pass

    def tell(self, messages):
        self.told.append({worker: words.tolist() for worker, words in messages.items()})

    def drain(self):
        pass


class Hand:
    """Remembers what it is asked; what is left is as many samples as it is told."""

    def __init__(self, left):
        self.left, self.asked, self.heard = left, [], []

    def started(self):
        pass

    def not_survived(self):
        self.asked.append("not survived")

    def lost(self, worker, applied, waiting, takers):
        self.asked.append((worker, list(applied), dict(waiting), list(takers)))
        return self.left, {taker: np.array([taker + 70]) for taker in takers}

    def pushed(self, worker, drawn):
        self.heard.append((worker, drawn))


def push(worker, samples=10):
    return Header(kind=MessageKind.PUSH, worker=worker, samples=samples)


def done(worker):
    return Header(kind=MessageKind.DONE, worker=worker)


def serve(strategy, events, workers=3, left=5, torn=(), **options):
    hello = [Header(kind=MessageKind.INIT, worker=0)]
    hello += [Header(kind=MessageKind.PULL, worker=w) for w in range(1, workers)]
    wire, hand = FakeWire([*hello, *events]), Hand(left)
    wire.torn = set(torn)
    shard = Shard(np.zeros(N), OptimizerOptions(rules.sgd(), schedules.constant(1.0)), segment=N)
    policy = strategies.create(strategy, workers, **options)
    server = SurvivingServer(wire, shard, policy, ServerOptions(workers))
    server.hand_over = hand
    server.run()
    assert not wire.events and wire.begun
    return wire, hand, server


def test_sync_goes_on_with_the_group_of_the_living():
    wire, hand, server = serve("sync", [push(0), push(1), push(2), push(2), push(0), Lost(1), done(0), done(2)])
    assert hand.asked == [(1, [10, 10, 10], {2: 20, 0: 20}, [0, 2])]
    assert wire.told == [{0: [1, 70], 2: [1, 72]}]
    assert wire.replies[6:8] == [(0, "REPLY", 1), (2, "REPLY", 1)]
    assert [reply[:2] for reply in wire.replies[8:]] == [(0, "END"), (2, "END")]
    np.testing.assert_allclose(server.shard.params, -2.0 - 2.0)  # means of 1, 2, 3 and of 1, 3


def test_a_push_that_was_not_applied_counts_as_not_made():
    _, hand, server = serve("sync", [push(1), Lost(1), push(0), push(2), done(0), done(2)])
    assert hand.asked[0] == (1, [0, 0, 0], {}, [0, 2])
    assert hand.heard == [(0, 10), (2, 10)]  # the last that they knew nothing of it
    assert server.metrics.dropped == [0, 1, 0] and server.metrics.pushes == [1, 0, 1]
    np.testing.assert_allclose(server.shard.params, -2.0)


def test_a_gradient_that_is_not_whole_is_given_up_with_its_group():
    _, hand, server = serve("async", [push(1), Lost(1), done(0), done(0), done(2), done(2)], torn=[1])
    np.testing.assert_array_equal(server.shard.params, 0.0)
    assert hand.asked[0][1] == [0, 0, 0] and server.metrics.dropped == [0, 1, 0]


def test_the_minimum_of_the_clocks_is_that_of_the_living():
    events = [push(0), push(2), push(0), push(2), Lost(1), done(0), done(2)]
    wire, _, _ = serve("ssp", events, staleness=1)
    assert [reply for reply in wire.replies if reply[1] == "REPLY"][5:7] == [(0, "REPLY", 1), (2, "REPLY", 1)]


def test_who_is_done_before_it_hears_of_it_is_sent_back():
    wire, hand, _ = serve("async", [push(0), Lost(1), done(0), push(0), done(0), done(2), done(2)])
    assert hand.heard[:1] == [(0, 10)]
    assert (0, "REPLY", 1) in wire.replies and [r[1] for r in wire.replies if r[0] == 0][-1] == "END"


@pytest.mark.parametrize("strategy", ["async", "ssp", "softsync", "sync"])
def test_all_come_back_where_the_last_one_dies(strategy):
    events = [push(0), push(1), push(2), done(0), done(2), Lost(1), push(0), push(2), done(0), done(2)]
    wire, hand, server = serve(strategy, events)
    assert hand.asked == [(1, [10, 10, 10], {0: 10, 2: 10}, [0, 2])]
    assert sum(server.metrics.pushes) == 5
    assert [r[:2] for r in wire.replies[-2:]] == [(0, "END"), (2, "END")]


def test_they_do_not_come_back_for_nothing():
    wire, _, _ = serve("async", [push(0), push(1), done(0), done(2), Lost(1)], left=0)
    assert wire.told == [{}] and [r[:2] for r in wire.replies[-2:]] == [(0, "END"), (2, "END")]


def test_when_all_have_died_the_run_ends():
    with pytest.raises(PeerLostError, match="all workers have died"):
        serve("async", [Lost(0), Lost(2), Lost(1)])


class Restored:
    """A policy that notes where it goes on."""

    fixed_order, point = False, None

    def restore(self, point):
        self.point = point


def test_each_server_goes_on_deciding_where_the_checkpoint_was():
    shard = Shard(np.zeros(N), OptimizerOptions(rules.sgd(), schedules.constant(1.0)), segment=N)
    for index in (0, 1):
        policy = Restored()
        server = SurvivingServer(FakeWire([]), shard, policy, ServerOptions(2, index, 2))
        log = {"actions": 9, "version": 4, "clocks": [5, 4], "positions": [50, 40], "opened": 0}
        server.restore({"params": np.ones(N)}, {"version": 4, "samples": 80, "open": 0, "log": log})
        assert policy.point.version == 4 and policy.point.clocks == [5, 4]
