"""softsync: every S contributions of any workers make one group; each worker continues at once.

n-softsync of Zhang, Gupta, Lian and Liu (2015), with S the updates that a step waits for. S = 1 is async. A worker may
be in a group twice, so S = N is not sync. What is left of a group when all workers are done makes a last, smaller one.
"""

from collections.abc import Sequence

from psgd.kernels.errors import UsageError
from psgd.server.log import CheckpointPoint, Contribution, LogEntry
from psgd.server.wire import Header


class Softsync:
    """Adds each push to the open group, and closes it with the S-th. One without samples is none of the S."""

    fixed_order = False

    def __init__(self, workers: int, softsync: int) -> None:
        if not 1 <= softsync <= workers:
            raise UsageError(f"softsync: expected 1 to {workers}, the number of workers, got {softsync}")
        self._size = softsync
        self._live = workers
        self._there = 0

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        self._there += push.samples > 0
        closes = self._there == self._size
        if closes:
            self._there = 0
        return (LogEntry((Contribution(push.worker, push.push),), (push.worker,), stays_open=not closes),)

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        self._live -= 1
        if self._live or not self._there:
            return ()
        self._there = 0
        return (LogEntry(),)

    def on_lost(self, worker: int) -> None:
        """What it had added to the open group was answered, and stays there."""

    def on_back(self, workers: Sequence[int]) -> None:
        self._live += len(workers)

    def restore(self, point: CheckpointPoint) -> None:
        self._there = point.open_contributions


create = Softsync
