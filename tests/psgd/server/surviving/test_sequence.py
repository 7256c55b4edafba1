"""The order that servers agree on, among servers in one process whose messages take their time and which die."""

import random
from collections import deque

import pytest

from psgd.server.surviving.sequence import EventKind, OrderedEvent, Sequence


class Played:
    """Servers with channels between them, and workers that push again once all that live have answered."""

    def __init__(self, servers, workers, seed):
        self.rng = random.Random(seed)
        self.parts = {s: Sequence(s, servers, workers) for s in range(servers)}
        self.workers = workers
        self.alive, self.living_workers = set(range(servers)), set(range(workers))
        self.channels = {(a, b): deque() for a in range(servers) for b in range(servers) if a != b}
        self.acted = {s: [] for s in range(servers)}
        self.coming = {s: {} for s in range(servers)}  # by worker: the deaths that it knew of when it sent
        self.here = {s: set() for s in range(servers)}
        self.answers = {w: {} for w in range(workers)}  # by server, to the exchange under way: deaths known, or None
        self.knows = dict.fromkeys(range(workers), 0)
        self.done = dict.fromkeys(range(workers), 0)
        self.most = 0

    def start(self, worker):
        self.answers[worker] = {}
        for server in self.alive:
            self.coming[server][worker] = self.knows[worker]

    def pump(self, server):
        """Takes in at random, acts on all that is decided, and sends."""
        part, rng = self.parts[server], self.rng
        for worker, knew in list(self.coming[server].items()):
            if rng.random() < 0.5:
                deaths = sum(e.kind == EventKind.SERVER_LOST for e in self.acted[server])
                if knew > deaths:
                    continue  # ahead of this server
                del self.coming[server][worker]
                if knew < deaths:
                    self.answers[worker][server] = deaths
                else:
                    self.here[server].add(worker)
                    part.arrived(worker)
        for other in self.parts:
            channel = self.channels.get((other, server))
            while channel and rng.random() < 0.5:
                part.receive(other, channel.popleft())
        if rng.random() < 0.3:
            for other in set(self.parts) - self.alive:
                part.server_died(other)
            for worker in set(range(self.workers)) - self.living_workers:
                part.worker_died(worker)
        while part.decided:
            self.act(server, part.decided.popleft())
        while part.outbox:
            to, words = part.outbox.popleft()
            assert len(words) <= Sequence.longest(self.workers)
            self.channels[server, to].append([int(word) for word in words])

    def act(self, server, event):
        self.acted[server].append(event)
        if event.kind == EventKind.EXCHANGE:
            self.here[server].remove(event.who)
            self.answers[event.who][server] = None
        elif event.kind == EventKind.SERVER_LOST:
            deaths = sum(e.kind == EventKind.SERVER_LOST for e in self.acted[server])
            for worker in self.here[server]:
                self.answers[worker][server] = deaths
            self.here[server].clear()
        else:
            self.here[server].discard(event.who)
            self.coming[server].pop(event.who, None)

    def answered(self, worker):
        """Whether all that live have answered it, who is then to make the same exchange again or the next one."""
        answers = self.answers[worker]
        if not self.alive <= set(answers):
            return False
        kinds = {answers[s] is None for s in self.alive}
        assert len(kinds) == 1, "some have taken it, others not"
        if kinds == {True}:
            self.done[worker] += 1
        else:
            self.knows[worker] = max(answers[s] for s in self.alive)
        self.start(worker)
        return True

    def kill(self, server):
        self.alive.discard(server)
        for (a, b), channel in self.channels.items():
            if a == server:  # what is under way is lost from some point on
                for _ in range(self.rng.randrange(len(channel) + 1)):
                    channel.pop()
            if b == server:
                channel.clear()


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_all_that_live_act_on_the_same_events_whoever_dies(servers):
    for seed in range(60):
        played = Played(servers, 3, seed)
        rng = played.rng
        for worker in range(3):
            played.start(worker)
        for turn in range(1200):
            played.pump(rng.choice(sorted(played.alive)))
            for worker in sorted(played.living_workers):
                if rng.random() < 0.5:
                    played.answered(worker)
            if turn < 600 and len(played.alive) > 1 and rng.random() < 0.01:
                played.kill(rng.choice(sorted(played.alive)))
            if turn < 600 and len(played.living_workers) > 1 and rng.random() < 0.003:
                played.living_workers.discard(rng.choice(sorted(played.living_workers)))
            if turn == 900:
                before = dict(played.done)
        logs = sorted((played.acted[s] for s in played.alive), key=len)
        for log in logs:
            assert log == logs[-1][: len(log)]
        for worker in range(3):
            numbers = [e.number for e in logs[-1] if e.kind == EventKind.EXCHANGE and e.who == worker]
            assert numbers == list(range(1, len(numbers) + 1))
            assert worker not in played.living_workers or played.done[worker] > before[worker], "it goes on"
        lost = {e.who for e in logs[-1] if e.kind == EventKind.SERVER_LOST}
        assert lost == set(range(servers)) - played.alive


def test_an_exchange_counts_once_all_have_it_and_no_sooner():
    first, second = Sequence(0, 2, 2), Sequence(1, 2, 2)
    first.arrived(1)
    assert not first.decided and not first.outbox
    second.arrived(1)
    ((to, words),) = second.outbox
    first.receive(1, words)
    assert to == 0 and list(first.decided) == [OrderedEvent(EventKind.EXCHANGE, 1, 1)]
    ((to, words),) = first.outbox
    second.receive(0, words)
    assert list(second.decided) == list(first.decided) and first.leads and not second.leads


def test_what_one_has_acted_on_the_others_get_from_it():
    parts = [Sequence(s, 3, 1) for s in range(3)]
    parts[1].receive(0, [1, 1, EventKind.EXCHANGE, 0, 1])  # the first has decided, told one, and died
    for part in parts[1:]:
        part.server_died(0)
    ((to, ask),) = parts[1].outbox
    parts[1].outbox.clear()
    parts[2].receive(1, ask)
    ((_, answer),) = parts[2].outbox
    parts[1].receive(2, answer)
    for to, words in parts[1].outbox:
        parts[to].receive(1, words)
    expected = [OrderedEvent(EventKind.EXCHANGE, 0, 1), OrderedEvent(EventKind.SERVER_LOST, 0)]
    assert list(parts[2].decided) == list(parts[1].decided) == expected
