"""Several servers agree on what happens in which order, though workers and servers die meanwhile. Without MPI.

What happens is an exchange of a worker, which counts as soon as all living servers have it as a whole, or a death. The
first of the living servers decides; the others tell it what they have. When it dies, the next one asks all that live
for the events that they know, hands each one those that it lacks, and goes on from there. So each server sees the same
events in the same order, and what one has acted on all have, as long as one of those that knew it lives.
"""

from collections import deque
from collections.abc import Sequence as Words
from enum import IntEnum
from typing import NamedTuple

_KNOWN = 64  # events that are kept for others, and some for each worker: nobody can be further behind
_KNOWN_EACH = 8
_EVENT_WORDS = 3


class EventKind(IntEnum):
    """What has happened."""

    EXCHANGE = 0  # of that worker
    WORKER_LOST = 1
    SERVER_LOST = 2


class OrderedEvent(NamedTuple):
    """One place in the order.

    Attributes:
        kind: what has happened.
        who: the worker or the server.
        number: of the worker's exchange, from 1; else 0.
    """

    kind: int
    who: int
    number: int = 0


class _Message(IntEnum):
    HAS = 0  # to who decides: an exchange is here
    HAPPENED = 1  # from who decides: the event at a place
    ASK = 2  # from who is to decide: what do you know?
    KNOWS = 3  # its answer


class Sequence:
    """One server's part.

    Args:
        server: this one's index.
        servers: how many there are.
        workers: how many there are.

    Attributes:
        decided: events to act on, in order; the caller takes them from the left.
        outbox: messages to send, each with the server that is to get it, in order; the caller takes them.
        living: servers that are not known to be dead, this one among them.
        lost_servers: of the others, those whose death is an event of the order.
    """

    def __init__(self, server: int, servers: int, workers: int) -> None:
        self.decided: deque[OrderedEvent] = deque()
        self.outbox: deque[tuple[int, list[int]]] = deque()
        self.living = set(range(servers))
        self.lost_servers: set[int] = set()
        self._me, self._leader = server, 0
        self._workers = workers
        self._lost_workers: set[int] = set()
        self._dead_workers: set[int] = set()  # known here, events or not
        self._dead_servers: set[int] = set()
        self._taken = [0] * workers  # exchanges of each worker that are events
        self._has = [[0] * workers for _ in range(servers)]  # exchanges of each worker that each server has
        self._place = 0  # of the newest event
        self._events: deque[OrderedEvent] = deque(maxlen=_KNOWN + _KNOWN_EACH * workers)  # the newest ones
        self._asked: set[int] = set()  # who has still to say what it knows
        self._places: dict[int, tuple[int, int, list[int]]] = {}  # what others said: place, deaths, what they have

    @property
    def leads(self) -> bool:
        """Whether this server decides."""
        return self._leader == self._me and not self._asked

    @staticmethod
    def longest(workers: int) -> int:
        """Words in the longest message, for so many workers."""
        return 3 + workers + _EVENT_WORDS * (_KNOWN + _KNOWN_EACH * workers)

    def arrived(self, worker: int) -> None:
        """The next exchange of a worker is here as a whole."""
        number = self._taken[worker] + 1
        self._has[self._me][worker] = number
        if self._leader != self._me:
            self.outbox.append((self._leader, [_Message.HAS, worker, number, len(self.lost_servers)]))
        self._decide()

    def worker_died(self, worker: int) -> None:
        """It is known here that a worker is dead."""
        self._dead_workers.add(worker)
        self._decide()

    def server_died(self, server: int) -> None:
        """It is known here that another server is dead."""
        if server not in self.living:
            return
        self.living.discard(server)
        self._dead_servers.add(server)
        self._asked.discard(server)
        if server == self._leader:
            self._leader = min(self.living)
            if self._leader == self._me:
                self._asked = self.living - {self._me}
                self.outbox.extend((other, [int(_Message.ASK)]) for other in sorted(self._asked))
                self._places.clear()
        self._lead()

    def receive(self, sender: int, words: Words[int]) -> None:
        """A message of another server has come."""
        kind, *rest = words
        if kind == _Message.HAS:
            worker, number, deaths = rest
            if deaths == len(self.lost_servers):
                self._has[sender][worker] = max(number, self._has[sender][worker])
            self._decide()
        elif kind == _Message.HAPPENED:
            place, *event = rest
            # Of one that has died meanwhile nothing counts any more, once another was told what is known here.
            if sender == self._leader and place == self._place + 1:
                self._append(OrderedEvent(*event))
        elif kind == _Message.ASK:
            self._follow(sender)
        elif kind == _Message.KNOWS and sender in self._asked:
            self._learn(sender, rest)

    def _follow(self, leader: int) -> None:
        """Tells another what is known here: it decides from now on. All before it are dead."""
        self._leader = leader
        for other in [each for each in self.living if each < leader]:
            self.living.discard(other)
            self._dead_servers.add(other)
        known = [int(word) for event in self._events for word in event]
        has = self._has[self._me]
        self.outbox.append((leader, [_Message.KNOWS, self._place, len(self.lost_servers), *has, *known]))

    def _learn(self, server: int, words: Words[int]) -> None:
        """Takes over the events that another knows and this one does not."""
        (place, deaths), has, known = words[:2], words[2 : 2 + self._workers], words[2 + self._workers :]
        self._asked.discard(server)
        self._places[server] = place, deaths, list(has)
        missing = place - self._place
        for at in range(len(known) - _EVENT_WORDS * missing, len(known), _EVENT_WORDS) if missing > 0 else ():
            self._append(OrderedEvent(*known[at : at + _EVENT_WORDS]))
        self._lead()

    def _lead(self) -> None:
        """Once all have said what they know: hands each one what it lacks."""
        if not self.leads:
            return
        known = list(self._events)
        for server, (place, deaths, has) in sorted(self._places.items()):
            if server in self.living:
                self._has[server] = has if deaths == len(self.lost_servers) else list(self._taken)
                missing = self._place - place
                for at, event in enumerate(known[len(known) - missing :], place + 1):
                    self.outbox.append((server, [_Message.HAPPENED, at, *event]))
        self._places.clear()
        self._decide()

    def _decide(self) -> None:
        """Adds to the order all that can be added now; deaths of servers first, then those of workers."""
        if not self.leads:
            return
        for server in sorted(self._dead_servers - self.lost_servers):
            self._publish(OrderedEvent(EventKind.SERVER_LOST, server))
        for worker in sorted(self._dead_workers - self._lost_workers):
            self._publish(OrderedEvent(EventKind.WORKER_LOST, worker))
        for worker in range(self._workers):
            number = self._taken[worker] + 1
            if worker not in self._lost_workers and all(self._has[each][worker] >= number for each in self.living):
                self._publish(OrderedEvent(EventKind.EXCHANGE, worker, number))

    def _publish(self, event: OrderedEvent) -> None:
        self._append(event)
        for other in sorted(self.living - {self._me}):
            self.outbox.append((other, [_Message.HAPPENED, self._place, *event]))

    def _append(self, event: OrderedEvent) -> None:
        self._place += 1
        self._events.append(event)
        self.decided.append(event)
        kind, who, number = event
        if kind == EventKind.EXCHANGE:
            self._taken[who] = number
        elif kind == EventKind.WORKER_LOST:
            self._lost_workers.add(who)
            self._dead_workers.add(who)
        else:
            self.lost_servers.add(who)
            self._dead_servers.add(who)
            self.living.discard(who)
            # What is not an event yet is made again by its worker, and comes to other servers then.
            self._has = [list(self._taken) for _ in self._has]
