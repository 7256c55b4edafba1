"""The server loop: takes headers, asks the strategy, applies groups to its shard, answers workers.

With several servers only server 0 asks the strategy, and the others follow its log; where the order is fixed, each
server finds it alone and no message passes between them.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.kernels.errors import ContractError
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.jsonable import JSON
from psgd.server.log import Contribution, LogEntry
from psgd.server.log_position import LogPosition
from psgd.server.policy import Policy
from psgd.server.shard import Shard, Vector, WeightedGradient
from psgd.server.transport import ServerTransport
from psgd.server.wire import FORMAT, LEAVE, RELAY, STOP, Header, MessageKind, left_out

_PUSH, _REPLY = int(MessageKind.PUSH), int(MessageKind.REPLY)  # plain numbers: an enum's members cost on the hot path


class Server:
    """One server's part of a run.

    Args:
        transport: the wire.
        shard: the parameters it owns.
        strategy: decides the order; not asked on a server that follows.
        workers: number of workers.
        index: this server's index.
        servers: number of servers.
        metrics: told of every push, on server 0.
        scale: what a contribution of that staleness is multiplied by; None is 1.
        on_cut: called at each cut before the workers go on, to save this server's `state()`; None saves nothing.
        on_start: called when all are released for the first time; None starts the metrics' clock.
        wanted: what this server's own process wants saved (`psgd.checkpoint.requests.SAVE`), 0 for nothing.

    Attributes:
        leaving: the newest cut was made to stop.
    """

    def __init__(
        self,
        transport: ServerTransport,
        shard: Shard,
        strategy: Policy,
        *,
        workers: int,
        index: int = 0,
        servers: int = 1,
        metrics: RunMetrics | None = None,
        scale: Callable[[int], float] | None = None,
        on_cut: Callable[[], None] | None = None,
        wanted: Callable[[], int] = int,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self.transport = transport
        self.shard = shard
        self.strategy = strategy
        self.metrics = metrics or RunMetrics(workers)
        self._decides = index == 0 or strategy.fixed_order
        self._publishes = index == 0 and servers > 1 and not strategy.fixed_order
        self._index = index
        self._workers = workers
        self._scale = scale
        self._pending: dict[int, Header] = {}
        self._came = [0.0] * workers  # when each worker's newest push did
        self._done: set[int] = set()
        self._queue: deque[LogEntry] = deque()
        self._ended = False
        self.leaving = False
        self._on_cut, self._wanted = on_cut, wanted
        self._tally = LogPosition(workers)
        self._on_start = on_start or self.metrics.restart

    def run(self) -> None:
        """Serves until every worker is done. Blocks.

        Raises:
            PeerLostError: a worker left with an error (the transport's waits raise it).
            ContractError: a push that no rule of the protocol allows.
        """
        self._initialize()
        try:
            self._serve()
        finally:
            for header in self._pending.values():  # none, unless the run broke
                self.metrics.dropped[header.worker] += header.samples > 0
        self.transport.drain()

    def _serve(self) -> None:
        while not self._ended:
            event = self.transport.next()
            if isinstance(event, LogEntry):
                self._queue.append(event)
            else:
                self._take(event)
            while self._queue and self._ready(self._queue[0]):
                self._execute(self._queue.popleft())

    def _initialize(self) -> None:
        """Takes the first worker's parameters, whoever comes first, and only then answers anyone.

        A run that goes on from a cut has its parameters.
        """
        waiting: set[int] = set()
        transport, shard = self.transport, self.shard
        while len(waiting) < self._workers:
            header = transport.next()
            if isinstance(header, LogEntry):
                self._queue.append(header)
                continue
            if header.kind == MessageKind.INIT:
                for segment, part in enumerate(shard.ranges):
                    shard.params[part.start : part.stop] = transport.fetch(header.worker, segment)
            waiting.add(header.worker)
        self._release(tuple(sorted(waiting)), MessageKind.REPLY)
        self._on_start()

    def _take(self, header: Header) -> None:
        kind, worker, now = header.kind, header.worker, time.perf_counter()
        if worker in self._done or worker in self._pending:
            raise ContractError(f"server {self._index}: worker {worker} sent kind {kind} after its end or too early")
        if kind == _PUSH:
            self._pending[worker] = header
            self._came[worker] = now
            self.metrics.dropped[worker] += left_out(header)
            if self._decides:
                self._decide(self.strategy.on_push(header, now), worker, now)
        elif kind == MessageKind.DONE:
            self._done.add(worker)
            self.metrics.ended(worker, header.value, header.value2)
            if self._decides:
                self._decide(self.strategy.on_done(worker, now), worker, now)
                if len(self._done) == self._workers:
                    self._decide((LogEntry(release=tuple(range(self._workers)), end=True),), worker, now)
        elif kind == MessageKind.REPORT:
            self.metrics.report(header.value, header.value2)
        else:
            raise ContractError(f"server {self._index}: worker {worker} sent kind {kind} after the start")

    def _decide(self, actions: tuple[LogEntry, ...], cause: int, now: float) -> None:
        """Does at once what was decided here when worker `cause` came, now: all that it needs has come."""
        for action in actions:
            if self._publishes:
                self.transport.publish(action)
            if not action.end:
                for worker in action.release:
                    if worker != cause:
                        self.metrics.held(worker, cause, self._came[worker], now)
            self._execute(action)

    def _ready(self, action: LogEntry) -> bool:
        """Whether all that server 0's action needs has come here too."""
        if action.end:
            return len(self._done) == self._workers
        return all(member.worker in self._pending for member in action.group)

    def _execute(self, action: LogEntry) -> None:
        shard, transport, release = self.shard, self.transport, action.release
        if self._on_cut is not None:
            self._tally.note(action, self._pending, shard.version)
            if action.save:
                self.leaving = action.save == SAVE_AND_STOP
                self._on_cut()
        if action.end or not (action.group or shard.is_open):
            self._release(release, MessageKind.END if action.end else MessageKind.REPLY)
            self._ended = action.end
            return
        group = [self._contribution(member) for member in action.group]
        group = [contribution for contribution in group if contribution[1]]
        if action.opens:
            for contribution in group:
                shard.add(contribution, transport.fetch)
            self._release(release, MessageKind.REPLY)
            return
        transport.reply(release, self._header(_REPLY, shard.version + bool(group or shard.is_open)))
        shard.apply(group, transport.fetch, transport.settle, lambda segment: transport.emit(release, segment))
        self.metrics.progress(shard.samples, shard.version, shard.lr)

    def _contribution(self, member: Contribution) -> WeightedGradient:
        """What a member's push, which has come, adds to its group."""
        header = self._pending.pop(member.worker)
        if header.push != member.push:
            raise ContractError(
                f"server {self._index}: the log has push {member.push} of worker {member.worker}, "
                f"which sent push {header.push}"
            )
        weight = member.weight
        if header.samples:
            staleness = self.shard.version - header.version
            self.metrics.applied(header.worker, header.samples, header.value, staleness)
            if self._scale is not None:
                weight *= self._scale(staleness)
        return member.worker, header.samples, weight

    def _release(self, workers: tuple[int, ...], kind: int) -> None:
        self.transport.reply(workers, self._header(kind, self.shard.version))
        for segment in range(len(self.shard.ranges)):
            self.transport.emit(workers, segment)

    def _header(self, kind: int, version: int) -> tuple[float, ...]:
        segments, stop, tally = len(self.shard.ranges), STOP * self.metrics.stop + LEAVE * self.leaving, self._tally
        if self._on_cut is not None:
            stop += RELAY * self._wanted()
        cuts, newest = tally.cuts, tally.newest
        return (FORMAT, 0, kind, 0, self._index, segments, cuts, newest, version, 0, 0, stop, self.shard.lr, 0.0)

    @property
    def cut(self) -> int:
        """The version at the newest cut."""
        return self._tally.newest

    def state(self) -> State:
        """What this server has to save at a cut; views. Server 0 knows the whole run's counters."""
        state = self.shard.saved()
        if self._index == 0:
            state.facts["log"] = self._tally.facts()
            state.facts["savers"] = self._tally.savers
        return state

    def restore(self, tensors: Mapping[str, Vector], facts: Mapping[str, JSON]) -> None:
        """Goes on from a cut; before `run`.

        Args:
            tensors: this server's ranges of what all servers' states had.
            facts: server 0's.
        """
        self.shard.restore(tensors, facts)
        if len(facts["log"]["clocks"]) == self._workers:
            cut = self._tally.restore(facts["log"])
            if self._decides:
                self.strategy.restore(cut)
