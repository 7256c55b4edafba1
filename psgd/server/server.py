"""The server loop: takes headers, asks the strategy, applies groups to its shard, answers workers.

With several servers only server 0 asks the strategy, and the others follow its log; where the order is fixed, each
server finds it alone and no message passes between them.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.state import State
from psgd.kernels.errors import ContractError
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.jsonable import JSON, section, wholes
from psgd.server.clock_check import ClockCheck
from psgd.server.log import LogEntry
from psgd.server.log_position import LogPosition
from psgd.server.policy import Policy
from psgd.server.shard import Shard, Vector
from psgd.server.transport import ServerTransport
from psgd.server.wire import Header, MessageKind

# Plain numbers: an enum's members cost on the hot path.
_PUSH, _REPLY, _END = int(MessageKind.PUSH), int(MessageKind.REPLY), int(MessageKind.END)


@dataclass(frozen=True)
class ServerOptions:
    """Which server it is, and what it does beside its steps.

    Attributes:
        workers: number of workers.
        index: this server's index.
        servers: number of servers.
        scale: what a contribution of that staleness is multiplied by; None is 1.
        on_checkpoint: called at each checkpoint before workers are released, to save this server's `state()`; None
            saves nothing.
        requested: what this server's own process wants saved (`psgd.checkpoint.requests.SAVE`), 0 for nothing.
        on_start: called when all are released for the first time; None starts the metrics' clock.
    """

    workers: int
    index: int = 0
    servers: int = 1
    scale: Callable[[int], float] | None = None
    on_checkpoint: Callable[[], None] | None = None
    requested: Callable[[], int] = int
    on_start: Callable[[], None] | None = None


class Server:
    """One server's part of a run. The strategy is not asked on a server that follows.

    Attributes:
        position: where the log stands.
        leaving: the newest checkpoint was made to stop.
        all_decide: each server decides, as all see the same in the same order; else server 0 does, unless the order is
            fixed.
    """

    all_decide = False

    def __init__(
        self,
        transport: ServerTransport,
        shard: Shard,
        strategy: Policy,
        options: ServerOptions,
        metrics: RunMetrics | None = None,
    ) -> None:
        self.transport, self.shard, self.strategy = transport, shard, strategy
        self.metrics = metrics or RunMetrics(options.workers)
        self.position = LogPosition(options.workers)
        self.leaving = False
        self._options = options
        alone = strategy.fixed_order or self.all_decide
        self._decides = options.index == 0 or alone
        self._publishes = options.index == 0 and options.servers > 1 and not alone
        self._settings = shard.optimizer.options.rule.settings
        self._followed = 0  # the newest push of an open group
        self._answer = Header(shard=options.index)
        self._clocks = ClockCheck(options.workers, options.index)
        self._resumed = False
        self._numbers = self.metrics.push_numbers
        self._pending: dict[int, Header] = {}
        self._arrived = [0.0] * options.workers  # when each worker's newest push did
        self._done: set[int] = set()
        self._log: deque[LogEntry] = deque()  # to be executed
        self._ended = False

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
                self._log.append(event)
            else:
                self._take(event)
            # What is decided here has all that it needs. A server that follows may have the log before the pushes,
            # or the pushes before the log.
            while self._log and (self._decides or self._is_ready(self._log[0])):
                entry = self._log.popleft()
                if self._options.on_checkpoint is not None:
                    self._note(entry, self._options.on_checkpoint)
                self._execute(entry)

    def _initialize(self) -> None:
        """Takes the first worker's parameters, whichever worker comes first, and only then answers anyone.

        A resumed run has its parameters.

        Raises:
            ContractError: a worker begins otherwise.
        """
        waiting: set[int] = set()
        transport, shard = self.transport, self.shard
        while len(waiting) < self._options.workers:
            header = transport.next()
            if isinstance(header, LogEntry):
                self._log.append(header)
                continue
            kind = MessageKind.INIT if header.worker == 0 and not self._resumed else MessageKind.PULL
            if header.kind != kind or header.worker in waiting:
                raise ContractError(
                    f"server {self._options.index}: worker {header.worker} sent kind {header.kind} at the start, "
                    f"expected {kind:d}, once"
                )
            self._clocks.check(header)
            if kind == MessageKind.INIT:
                for segment, part in enumerate(shard.ranges):
                    shard.params[part.start : part.stop] = transport.fetch(header.worker, segment)
            waiting.add(header.worker)
        # Not an entry of the log: a group that was open at the checkpoint stays so.
        self._execute(LogEntry(release=tuple(sorted(waiting)), stays_open=True))
        (self._options.on_start or self.metrics.restart)()

    def _take(self, header: Header) -> None:
        """Takes a header in, and adds to the log what is decided here because of it."""
        kind, worker, now = header.kind, header.worker, time.perf_counter()
        if worker in self._done or worker in self._pending:
            raise ContractError(
                f"server {self._options.index}: worker {worker} sent kind {kind} after its end or too early"
            )
        entries: tuple[LogEntry, ...] = ()
        if kind == _PUSH:
            self._clocks.take(header)
            self._pending[worker] = header
            self._arrived[worker] = now
            self.metrics.dropped[worker] += header.dropped
            if self._decides:
                entries = self.strategy.on_push(header, now)
        elif kind == MessageKind.DONE:
            self._clocks.check(header)
            self._done.add(worker)
            self.metrics.ended(worker, header.waited_s, header.computed_s)
            if self._decides:
                entries = self.strategy.on_done(worker, now)
                if len(self._done) == self._options.workers:
                    entries = (*entries, LogEntry(release=tuple(range(self._options.workers)), ends_log=True))
        elif kind == MessageKind.REPORT:
            self.metrics.report(header.accuracy, header.loss)
        else:
            raise ContractError(f"server {self._options.index}: worker {worker} sent kind {kind} after the start")
        for entry in entries:
            self._log.append(entry)
            if self._publishes:
                self.transport.publish(entry)
            for other in () if entry.ends_log else entry.release:
                if other != worker:
                    self.metrics.held(other, worker, self._arrived[other], now)

    def _is_ready(self, entry: LogEntry) -> bool:
        """Whether all that server 0's entry needs has arrived here too."""
        if entry.ends_log:
            return len(self._done) == self._options.workers
        return all(member.worker in self._pending for member in entry.group)

    def _execute(self, entry: LogEntry) -> None:
        """Applies the entry's group, unless it stays open, and answers the workers that it releases."""
        shard, transport, scale, numbers = self.shard, self.transport, self._options.scale, self._numbers
        version, group, applied = shard.optimizer.version, [], []
        newest = 0, 0  # of the group's pushes, and whose
        for member in entry.group:
            push = self._pending.pop(member.worker)
            if push.push != member.push:
                raise ContractError(
                    f"server {self._options.index}: the log has push {member.push} of worker {member.worker}, "
                    f"which sent push {push.push}"
                )
            numbers.applied[member.worker] += 1
            numbers.newest[member.worker] = member.push
            if push.samples:
                staleness = version - push.version
                applied.append((member.worker, 1, push.samples, push.loss * push.samples, staleness))
                weight = member.weight if scale is None else member.weight * scale(staleness)
                group.append((member.worker, push.samples, weight))
                newest = max(newest, (push.push, -member.worker))
        self._follow(*newest, entry.stays_open)
        steps = False
        if entry.stays_open:
            for contribution in group:
                shard.add(contribution, transport.fetch)
        elif not entry.ends_log:
            steps = len(group) > 0 or shard.open_samples > 0
        answer = self._answer
        answer.kind = _END if entry.ends_log else _REPLY
        answer.version = version + steps
        answer.stop = self.metrics.stop or self.leaving
        # The reply's header goes ahead of the step; then segments go out one by one as they are final.
        for worker in entry.release:
            self._clocks.versions[worker] = answer.version
        transport.reply(entry.release, answer)
        emit = partial(transport.emit, entry.release)
        if steps:
            shard.apply(group, transport.fetch, transport.settle, emit)
        else:
            for segment in range(len(shard.ranges)):
                emit(segment)
        for each in applied:  # after the answers, which workers wait for
            self.metrics.count(*each)
        if steps:
            self.metrics.progress(shard.samples, shard.optimizer.version, shard.optimizer.lr)
        self._ended = entry.ends_log

    def _follow(self, push: int, worker: int, stays_open: bool) -> None:
        """The rule goes by what came with this push of the worker (minus its index), if no other of the group is newer.

        Push 0 is none.
        """
        if self._settings is not None:
            if push > self._followed:
                self._settings.read(self.transport.settings(-worker))
            self._followed = max(push, self._followed) if stays_open else 0

    def _note(self, entry: LogEntry, save: Callable[[], None]) -> None:
        """Counts an entry of the log before it is executed, and saves where it has a checkpoint."""
        position, answer = self.position, self._answer
        position.note(entry, self._pending, self.shard.version)
        if entry.checkpoint:
            self.leaving = entry.checkpoint == SAVE_AND_STOP
            save()
        answer.leaving = self.leaving
        answer.checkpoints, answer.checkpoint_version = position.checkpoints, position.checkpoint_version
        answer.checkpoint_request = self._options.requested()

    def state(self) -> State:
        """What this server has to save at a checkpoint; views. Server 0 knows the whole run's counters."""
        return self._with_log(self.shard.saved(), self._options.index)

    def _with_log(self, state: State, shard: int) -> State:
        if shard == 0:
            state.facts["log"] = self.position.facts()
            state.facts["savers"] = self.position.savers
        return state

    def restore(self, tensors: Mapping[str, Vector], facts: Mapping[str, JSON]) -> None:
        """Resumes from a checkpoint; before `run`.

        Args:
            tensors: this server's ranges of what all servers' states had.
            facts: server 0's.
        """
        self._resumed = True
        self.shard.restore(tensors, facts)
        log = section(facts, "log")
        point = self.position.restore(log)
        if len(wholes(log, "clocks")) == self._options.workers:
            self._clocks.restore(point.clocks, wholes(log, "positions"))
            self._numbers.resume(point.clocks)
        if self._decides:
            self.strategy.restore(point)
