"""Checkpoint points: places in the log at which everything that was pushed is applied, and all workers wait.

A cut is due after every so many versions, or when a worker's push asks for one. From then on releases are held back;
when the last worker that is not done has come, all are released by one action that is marked `save`. With `sync` that
is the group's own release, so nothing changes; other strategies wait for the slowest worker once. None holds a worker
back then: it has freed the slowest, and nobody can have got further ahead of that one than is allowed meanwhile.
"""

from psgd.checkpoint.requests import SAVE
from psgd.server.log import CheckpointPoint, LogEntry
from psgd.server.policy import Policy
from psgd.server.wire import Header, asked


class CheckpointPoints:
    """A strategy whose releases are held back where a cut is due. Implements `psgd.server.policy.Policy`.

    Args:
        strategy: the one that decides.
        workers: how many there are.
        every: versions from one cut to the next; 0 makes cuts only when asked.
    """

    def __init__(self, strategy: Policy, workers: int, every: int = 0) -> None:
        self.fixed_order = strategy.fixed_order
        self._strategy = strategy
        self._every = every
        self._next = every
        self._version = self._asked = 0
        self._open = False
        self._live = set(range(workers))
        self._came: dict[int, int] = {}  # samples of pushes that are not applied yet, by worker
        self._waiting: set[int] = set()  # pushed and applied, not released
        self._held: set[int] = set()  # of these, those that would have been

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        """See `psgd.server.policy.Policy`."""
        self._came[push.worker] = push.samples
        self._asked = max(self._asked, asked(push))
        return self._through(self._strategy.on_push(push, now))

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        """See `psgd.server.policy.Policy`."""
        self._live.discard(worker)
        return self._through(self._strategy.on_done(worker, now))

    def restore(self, cut: CheckpointPoint) -> None:
        """See `psgd.server.policy.Policy`."""
        self._strategy.restore(cut)
        self._version, self._open = cut.version, cut.opened > 0
        self._plan()

    def _plan(self) -> None:
        if self._every:
            self._next = (self._version // self._every + 1) * self._every

    def _through(self, actions: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """What becomes of the strategy's actions."""
        out: tuple[LogEntry, ...] = ()
        for action in actions:
            was_open = self._open
            passed = self._held_back(action)
            if passed.group or passed.release or was_open:
                out = (*out, passed)
        if not self._due() or self._came or not self._live or len(self._waiting) < len(self._live):
            return out
        assert self._held == self._waiting
        save = LogEntry((), tuple(sorted(self._held)), opens=self._open, save=self._asked or SAVE)
        self._held.clear()
        self._waiting.clear()
        self._asked = 0
        self._plan()
        return (*out, save)

    def _held_back(self, action: LogEntry) -> LogEntry:
        """The action, without its releases where a cut is due after it."""
        samples = 0
        for member in action.group:
            samples += self._came.pop(member.worker)
            self._waiting.add(member.worker)
        self._version += not action.opens and (self._open or samples > 0)
        self._open = action.opens and (self._open or samples > 0)
        if self._due():
            self._held.update(action.release)
            return action._replace(release=())
        self._waiting.difference_update(action.release)
        return action

    def _due(self) -> bool:
        return self._asked > 0 or (self._every > 0 and self._version >= self._next)
