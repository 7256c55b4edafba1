"""sync: all live workers at clock c make one group; then all go on.

Equal to one process with the batches joined. The order is fixed by clock and rank: contributions are summed in
worker order, so a run repeats bit for bit. A worker that is done leaves the group; a push of 0 samples keeps its
place in the clock and adds nothing.
"""

from collections.abc import Sequence

from psgd.server.log import CheckpointPoint, Contribution, LogEntry
from psgd.server.wire import Header


class Synchronous:
    """Waits for every live worker, then applies and releases them together."""

    fixed_order = True

    def __init__(self, workers: int) -> None:
        self._live = set(range(workers))
        self._waiting: dict[int, Contribution] = {}

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        waiting = self._waiting
        waiting[push.worker] = Contribution(push.worker, push.push)
        if len(waiting) < len(self._live):
            return ()
        workers = tuple(sorted(waiting))
        return (LogEntry(tuple(map(waiting.pop, workers)), workers),)

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        self._live.discard(worker)
        waiting = self._waiting
        if not waiting or len(waiting) < len(self._live):
            return ()
        workers = tuple(sorted(waiting))
        return (LogEntry(tuple(map(waiting.pop, workers)), workers),)

    def on_lost(self, worker: int) -> None:
        self._waiting.pop(worker, None)

    def on_back(self, workers: Sequence[int]) -> None:
        self._live.update(workers)

    def restore(self, point: CheckpointPoint) -> None:
        """Nothing to restore: no worker waits between two clocks."""


create = Synchronous
