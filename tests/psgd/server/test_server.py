"""The server loop driven in one process by a fake transport: what is applied, in which order, who is answered."""

import time
from collections import deque

import numpy as np
import pytest
from harness.rates import Rates

from psgd import strategies
from psgd.checkpoint.requests import SAVE
from psgd.kernels.errors import ContractError
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.wait_log import WaitLog
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.server.checkpoint_points import CheckpointPoints
from psgd.server.log import Contribution, LogEntry
from psgd.server.server import Server, ServerOptions
from psgd.server.shard import Shard
from psgd.server.wire import Header, MessageKind

N, SEGMENT = 10, 4
ANSWERED = 1 << 40  # stands for the version that the worker was answered last


class FakeTransport:
    """Events in a list, gradients in a dictionary; remembers every reply with the parameters it carried.

    Fills in of each header what its worker's last ones and answers say: samples drawn, and where it is left out, the
    version and the last push.
    """

    def __init__(self, params, events, grads):
        self.params, self.events, self.grads = params, deque(events), grads
        self.replies, self.published = [], []
        self.drawn, self.pushed = {}, {}
        self.drained = False

    def next(self):
        event = self.events.popleft()
        if isinstance(event, Header) and event.kind == MessageKind.PUSH:
            self.grad = {**getattr(self, "grad", {}), event.worker: self.grads[event.worker, event.push]}
            event.position = self.drawn[event.worker] = self.drawn.get(event.worker, 0) + event.samples
            self.pushed[event.worker] = event.push
            if event.version == ANSWERED:
                event.version = [reply[2] for reply in self.replies if reply[0] == event.worker][-1]
        elif isinstance(event, Header) and event.kind == MessageKind.DONE:
            event.push = self.pushed.get(event.worker, 0)
        return event

    def fetch(self, worker, segment):
        if (worker, "init") in self.grads and not hasattr(self, "grad"):
            return self.grads[worker, "init"][segment * SEGMENT :][:SEGMENT]
        return self.grad[worker][segment * SEGMENT :][:SEGMENT]

    def settle(self, segment):
        pass

    def reply(self, workers, header):
        for worker in workers:
            self.replies.append((worker, MessageKind(header.kind), header.version, np.full(N, np.nan), header.stop))

    def emit(self, workers, segment):
        part = slice(segment * SEGMENT, min(N, (segment + 1) * SEGMENT))
        for worker in workers:
            newest = [reply for reply in self.replies if reply[0] == worker][-1]
            newest[3][part] = self.params[part]

    def publish(self, entry):
        self.published.append(entry)

    def drain(self):
        self.drained = True


def header(kind, worker, push=0, version=0, samples=0, **fields):
    return Header(kind=kind, worker=worker, push=push, version=version, samples=samples, **fields)


START = np.arange(N, dtype=np.float64)
HELLO = [header(MessageKind.INIT, 0), header(MessageKind.PULL, 1)]
BYE = [header(MessageKind.DONE, 1), header(MessageKind.DONE, 0)]


def grads(pushes, workers=2):
    made = {(w, p): np.random.default_rng([w, p]).normal(size=N) for w in range(workers) for p in range(1, pushes + 1)}
    return {**made, (0, "init"): START}


def serve(strategy, events, made, workers=2, index=0, servers=1, metrics=None, **options):
    params = np.zeros(N)
    transport = FakeTransport(params, events, made)
    shard = Shard(params, OptimizerOptions(rules.sgd(), schedules.constant(0.5)), segment=SEGMENT)
    policy = strategies.create(strategy, workers, **options)
    server = Server(transport, shard, policy, ServerOptions(workers, index, servers), metrics)
    server.run()
    return transport, server


@pytest.mark.parametrize("first", [[0, 1], [1, 0]])
def test_nobody_is_answered_before_the_parameters_are_there(first):
    hello = [HELLO[w] for w in first]
    transport, _ = serve("sync", hello + BYE, grads(0))
    for worker in (0, 1):
        mine = [reply for reply in transport.replies if reply[0] == worker]
        assert [reply[1] for reply in mine] == [MessageKind.REPLY, MessageKind.END]
        for reply in mine:
            np.testing.assert_array_equal(reply[3], START)
    assert transport.drained


def test_sync_equals_the_closed_form():
    made = grads(2)
    pushes = [
        header(MessageKind.PUSH, 1, 1, 0, 30),
        header(MessageKind.PUSH, 0, 1, 0, 10),
        header(MessageKind.PUSH, 0, 2, 1, 10),
        header(MessageKind.PUSH, 1, 2, 1, 30),
    ]
    transport, server = serve("sync", HELLO + pushes + BYE, made)
    expected = START.copy()
    for p in (1, 2):
        expected -= 0.5 * ((10 * made[0, p] + 30 * made[1, p]) * (1 / 40))
    np.testing.assert_allclose(transport.params, expected, rtol=1e-15)
    assert server.shard.version == 2
    assert [(r[0], r[2]) for r in transport.replies[2:6]] == [(0, 1), (1, 1), (0, 2), (1, 2)]


def test_async_applies_each_push_once_in_arrival_order_and_counts_staleness():
    made = grads(2)
    pushes = [
        header(MessageKind.PUSH, 1, 1, 0, 8),
        header(MessageKind.PUSH, 0, 1, 0, 8),
        header(MessageKind.PUSH, 0, 2, 2, 8),
        header(MessageKind.PUSH, 1, 2, 1, 8),
    ]
    metrics = RunMetrics(2)
    transport, _ = serve("async", HELLO + pushes + BYE, made, metrics=metrics)
    expected = START.copy()
    answers = []
    for key in ((1, 1), (0, 1), (0, 2), (1, 2)):
        expected = expected - 0.5 * made[key]
        answers.append(expected)
    for reply, answer in zip(transport.replies[2:6], answers, strict=True):
        np.testing.assert_array_equal(reply[3], answer)
    assert dict(metrics.staleness) == {0: 2, 1: 1, 2: 1}
    assert metrics.pushes == [2, 2]


def test_a_push_of_no_samples_keeps_pace_and_moves_nothing():
    made = grads(1)
    pushes = [header(MessageKind.PUSH, 0, 1, 0, 10), header(MessageKind.PUSH, 1, 1, 0, 0)]
    metrics = RunMetrics(2)
    transport, server = serve("sync", HELLO + pushes + BYE, made, metrics=metrics)
    np.testing.assert_array_equal(transport.params, START - 0.5 * made[0, 1])
    assert server.shard.version == 1
    assert metrics.pushes == [1, 0]


def test_a_worker_that_is_done_holds_nobody_up():
    made = grads(2)
    events = [
        header(MessageKind.PUSH, 0, 1, 0, 10),
        header(MessageKind.DONE, 1),
        header(MessageKind.PUSH, 0, 2, 1, 10),
        header(MessageKind.DONE, 0),
    ]
    transport, server = serve("sync", HELLO + events, made)
    np.testing.assert_allclose(transport.params, START - 0.5 * made[0, 1] - 0.5 * made[0, 2], rtol=1e-15)
    assert server.shard.version == 2
    assert [r[1] for r in transport.replies[-2:]] == [MessageKind.END, MessageKind.END]


def test_server_0_publishes_what_it_decides():
    made = grads(1)
    pushes = [header(MessageKind.PUSH, 1, 1, 0, 8), header(MessageKind.PUSH, 0, 1, 0, 8)]
    transport, _ = serve("async", HELLO + pushes + BYE, made, servers=2)
    assert transport.published == [
        LogEntry((Contribution(1, 1),), (1,)),
        LogEntry((Contribution(0, 1),), (0,)),
        LogEntry(release=(0, 1), ends_log=True),
    ]
    sync, _ = serve("sync", HELLO + pushes + BYE, made, servers=2)
    assert sync.published == []


def test_other_servers_follow_the_log_not_their_own_arrivals():
    made = grads(1)
    events = [
        header(MessageKind.PUSH, 0, 1, 0, 8),
        LogEntry((Contribution(1, 1),), (1,)),
        LogEntry((Contribution(0, 1),), (0,)),
        header(MessageKind.PUSH, 1, 1, 0, 8),
        header(MessageKind.DONE, 0),
        LogEntry(release=(0, 1), ends_log=True),
        header(MessageKind.DONE, 1),
    ]
    transport, _ = serve("async", HELLO + events, made, index=1, servers=2)
    assert [(r[0], r[2]) for r in transport.replies[2:4]] == [(1, 1), (0, 2)]
    np.testing.assert_array_equal(transport.params, (START - 0.5 * made[1, 1]) - 0.5 * made[0, 1])


def test_a_push_that_the_log_does_not_have_is_refused():
    events = [header(MessageKind.PUSH, 0, 1, 0, 8), LogEntry((Contribution(0, 2),), (0,))]
    with pytest.raises(ContractError, match="the log has push 2 of worker 0, which sent push 1"):
        serve("async", HELLO + events, grads(2), index=1, servers=2)


def test_init_after_the_start_is_refused():
    with pytest.raises(ContractError, match="worker 0 sent kind 1 after the start"):
        serve("sync", [*HELLO, header(MessageKind.INIT, 0)], grads(0))


def test_a_target_stops_all_workers_at_the_same_step():
    metrics = RunMetrics(2, target_accuracy=0.9)
    events = [
        header(MessageKind.REPORT, 0, accuracy=0.8),
        header(MessageKind.PUSH, 0, 1, 0, 8),
        header(MessageKind.PUSH, 1, 1, 0, 8),
        header(MessageKind.REPORT, 0, accuracy=0.95),
        header(MessageKind.PUSH, 1, 2, 1, 8),
        header(MessageKind.PUSH, 0, 2, 1, 8),
    ]
    transport, _ = serve("sync", HELLO + events + BYE, grads(2), metrics=metrics)
    assert [r[4] for r in transport.replies[2:6]] == [0, 0, 1, 1]
    assert metrics.seconds_to_target is not None


class SlowTransport(FakeTransport):
    """Lets some time pass before each event."""

    def next(self):
        time.sleep(0.002)
        return super().next()


@pytest.mark.parametrize(
    ("strategy", "options", "order", "expected"),
    [  # a worker's number is its push, + its end
        ("sync", {}, "1 0 1 0+ 1 1+", [(1, 0), (1, 0)]),
        ("ssp", {"staleness": 1}, "1 1 0 1 0+ 1+", [(1, 0), (1, 0)]),
        ("async", {}, "1 1 0 1 0+ 1+", []),
        ("softsync", {"softsync": 2}, "1 1 0 1 0+ 1+", []),
    ],
)
def test_who_waited_for_whom(strategy, options, order, expected, monkeypatch):
    """Twice worker 1 cannot go on before worker 0 comes: the first time with a push, then with its end."""
    monkeypatch.setattr(f"{__name__}.FakeTransport", SlowTransport)
    metrics = RunMetrics(2, waits=WaitLog())
    events, pushes = [], [0, 0]
    for word in order.split():
        worker = int(word[0])
        pushes[worker] += word[1:] != "+"
        events.append(header(MessageKind.DONE if word[1:] else MessageKind.PUSH, worker, pushes[worker], ANSWERED, 8))
    serve(strategy, HELLO + events, grads(3), metrics=metrics, **options)
    rows = metrics.waits.take().get("rows", [])
    assert [row[:2] for row in rows] == expected
    assert metrics.waited == [0, len(expected)] and metrics.pushes == [1, 3]
    assert all(0.002 <= stop - start < 1 for *_, start, stop in rows)
    assert metrics.dropped == [0, 0]


def test_pushes_of_a_group_that_breaks_are_dropped():
    metrics = RunMetrics(3)
    events = [header(MessageKind.PULL, 2), header(MessageKind.PUSH, 2, 1, 0, 8), header(MessageKind.PUSH, 0, 1, 0, 0)]
    with pytest.raises(IndexError):  # the fake has no more events: the others never come
        serve("sync", HELLO + events, grads(1, 3), workers=3, metrics=metrics)
    assert (metrics.dropped, metrics.pushes) == ([0, 0, 1], [0, 0, 0])


def test_a_group_that_is_open_at_a_checkpoint_goes_on():
    """softsync's first contribution is in the sum at the checkpoint, and the resumed server takes the step."""
    made, found = grads(2), []
    asks = header(MessageKind.PUSH, 0, 1, 0, 10, checkpoint_request=SAVE)
    pushes = [
        asks,
        header(MessageKind.PUSH, 1, 1, 0, 0),
        header(MessageKind.PUSH, 1, 2, 0, 30),
        header(MessageKind.PUSH, 0, 2, 0, 20),
    ]

    def server(events):
        params = np.zeros(N)
        shard = Shard(params, OptimizerOptions(rules.create("adam"), schedules.cosine(0.5, 100)), segment=SEGMENT)
        strategy = CheckpointPoints(strategies.create("softsync", 2, softsync=2), 2)

        def save():
            state = made_server.state()
            found.append(({name: array.copy() for name, array in state.tensors.items()}, state.facts))

        transport = FakeTransport(params, events, made)
        made_server = Server(transport, shard, strategy, ServerOptions(2, on_checkpoint=save))
        return made_server

    whole = server(HELLO + pushes + BYE)
    whole.run()
    tensors, facts = found[0]
    assert len(found) == 1 and facts["open"] == 10 and facts["version"] == 0
    assert facts["log"]["clocks"] == [1, 1] and facts["log"]["opened"] == 1 and facts["savers"] == [0, 1]
    again = server([header(MessageKind.PULL, 0, 1), header(MessageKind.PULL, 1, 1), *pushes[2:], *BYE])
    again.transport.drawn = {0: 10}
    again.restore(tensors, facts)
    again.run()
    assert whole.shard.version == again.shard.version == 2
    np.testing.assert_array_equal(again.shard.params, whole.shard.params)


@pytest.mark.parametrize("pushes", [0, 1, 2])
def test_other_workers_take_the_step_of_a_group_that_was_open(pushes):
    """Of softsync with two contributions; at the end at the latest, also where nobody pushes any more."""
    params = np.zeros(N)
    shard = Shard(params, OptimizerOptions(rules.sgd(), schedules.constant(0.5)), segment=SEGMENT)
    events = [header(MessageKind.PULL, worker) for worker in range(3)]
    events += [header(MessageKind.PUSH, worker, 1, 4, 30) for worker in range(pushes)]
    events += [header(MessageKind.DONE, worker, int(worker < pushes)) for worker in range(3)]
    made = {(worker, 1): np.full(N, 2.0) for worker in range(3)}
    strategy = CheckpointPoints(strategies.create("softsync", 3, softsync=2), 3)
    server = Server(FakeTransport(params, events, made), shard, strategy, ServerOptions(3))
    log = {"actions": 9, "version": 4, "clocks": [5, 4], "positions": [50, 40], "opened": 1}
    tensors = {"params": np.full(N, 1.0), "open": np.full(N, 40.0)}
    server.restore(tensors, {"version": 4, "samples": 80, "open": 10, "log": log})
    server.run()
    first = (40.0 + 60.0 * min(1, pushes)) / (10 + 30 * min(1, pushes))
    assert shard.version == 5 + (pushes == 2) and shard.samples == 90 + 30 * pushes
    np.testing.assert_allclose(params, 1.0 - 0.5 * first - (0.5 * 2.0 if pushes == 2 else 0.0), rtol=1e-15)


def test_the_rule_goes_by_the_newest_push_of_a_group():
    """Of equal ones by the first worker's; groups that stay open count as one."""
    params, rates = np.zeros(N), Rates()
    transport = FakeTransport(params, [], grads(3))
    transport.settings = lambda worker: np.array([worker + 0.5])
    rule = rules.sgd()._replace(settings=rates)
    shard = Shard(params, OptimizerOptions(rule, schedules.constant(0.5)), segment=SEGMENT)
    server = Server(transport, shard, strategies.create("sync", 2), ServerOptions(2))
    transport.grad = {worker: transport.grads[worker, 1] for worker in range(2)}
    nobody = None, None
    groups = [
        ((1, 1), False),
        ((1, 2), False),
        ((3, None), True),
        ((None, 2), True),
        (nobody, False),
        ((None, 1), False),
    ]
    for pushes, stays_open in groups:
        made = [(worker, push) for worker, push in enumerate(pushes) if push is not None]
        for worker, push in made:
            server._pending[worker] = header(MessageKind.PUSH, worker, push, samples=1)
        server._execute(LogEntry(group=tuple(Contribution(*each) for each in made), stays_open=stays_open))
    assert rates.seen == [[0.5], [1.5], [0.5], [1.5]]
    assert shard.saved().facts["skipped"] == 0
