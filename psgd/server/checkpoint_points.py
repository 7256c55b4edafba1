"""Checkpoint points: places in the log at which everything that was pushed is applied, and all workers wait.

A checkpoint is due after every so many versions, or when a worker's push requests one. From then on releases are
deferred; when the last worker that is not done has pushed, all are released by one entry that has the checkpoint. With
`sync` that is the group's own release, so nothing changes; other strategies wait for the slowest worker once. None
holds a worker back then: it has freed the slowest, and nobody can have got further ahead of that one than is allowed
meanwhile.
"""

from collections.abc import Sequence
from typing import cast

from psgd.checkpoint.requests import SAVE
from psgd.server.log import CheckpointPoint, LogEntry
from psgd.server.policy import Policy
from psgd.server.surviving.hand_over import Deciding
from psgd.server.wire import Header


class CheckpointPoints:
    """A strategy whose releases are deferred where a checkpoint is due. Implements `psgd.server.policy.Policy`.

    Args:
        strategy: the one that decides.
        workers: how many there are.
        every: versions from one checkpoint to the next; 0 makes them only on request.
    """

    def __init__(self, strategy: Policy, workers: int, every: int = 0) -> None:
        self.fixed_order = strategy.fixed_order
        self._strategy = strategy
        self._every = every
        self._next = every
        self._version = self._request = 0
        self._open = False
        self._live = set(range(workers))
        self._pending: dict[int, int] = {}  # samples of pushes that are not applied yet, by worker
        self._waiting: set[int] = set()  # pushed and applied, not released
        self._deferred: set[int] = set()  # of these, those that the strategy has released

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        self._pending[push.worker] = push.samples
        self._request = max(self._request, push.checkpoint_request)
        return self._with_checkpoints(self._strategy.on_push(push, now))

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        self._live.discard(worker)
        return self._with_checkpoints(self._strategy.on_done(worker, now))

    def on_lost(self, worker: int) -> None:
        """This and the next are `psgd.server.surviving.hand_over.Deciding`."""
        for some in (self._waiting, self._deferred):
            some.discard(worker)
        self._pending.pop(worker, None)
        cast(Deciding, self._strategy).on_lost(worker)

    def on_back(self, workers: Sequence[int]) -> None:
        self._live.update(workers)
        cast(Deciding, self._strategy).on_back(workers)

    def restore(self, point: CheckpointPoint) -> None:
        self._strategy.restore(point)
        self._version, self._open = point.version, point.open_contributions > 0
        self._plan()

    def _plan(self) -> None:
        if self._every:
            self._next = (self._version // self._every + 1) * self._every

    def _with_checkpoints(self, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """The strategy's entries with releases deferred, and the entry of a checkpoint where all are at it."""
        out: tuple[LogEntry, ...] = ()
        for entry in entries:
            was_open = self._open
            passed = self._deferring(entry)
            if passed.group or passed.release or was_open:
                out = (*out, passed)
        if not self._due() or self._pending or not self._live or len(self._waiting) < len(self._live):
            return out
        assert self._deferred == self._waiting
        release = tuple(sorted(self._deferred))
        checkpoint = LogEntry((), release, stays_open=self._open, checkpoint=self._request or SAVE)
        self._deferred.clear()
        self._waiting.clear()
        self._request = 0
        self._plan()
        return (*out, checkpoint)

    def _deferring(self, entry: LogEntry) -> LogEntry:
        """The entry, without its releases where a checkpoint is due after it."""
        samples = 0
        for member in entry.group:
            samples += self._pending.pop(member.worker)
            self._waiting.add(member.worker)
        self._version += not entry.stays_open and (self._open or samples > 0)
        self._open = entry.stays_open and (self._open or samples > 0)
        if self._due():
            self._deferred.update(entry.release)
            return entry._replace(release=())
        self._waiting.difference_update(entry.release)
        return entry

    def _due(self) -> bool:
        return self._request > 0 or (self._every > 0 and self._version >= self._next)
