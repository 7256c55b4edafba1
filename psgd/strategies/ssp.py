"""ssp: a worker may be up to s steps ahead of the slowest (stale synchronous parallel; Ho et al. 2013).

A worker that has pushed c times continues once the slowest has pushed c - s times, so that it reads all updates of the
first c - s steps of everyone, its own included, and perhaps more. Each push is applied as it comes, as a step of 1/N of
its gradient: N workers' steps together are as long as one of sync. A worker that is done holds nobody up. With s = 0
it is sync.
"""

import math
from collections.abc import Sequence

from psgd.server.log import CheckpointPoint, Contribution, LogEntry
from psgd.server.policy import Policy
from psgd.server.wire import Header
from psgd.strategies.sync import Synchronous


class BoundedStaleness:
    """Applies each push, and releases each worker that is not too far ahead."""

    fixed_order = False

    def __init__(self, workers: int, staleness: int) -> None:
        self._bound = staleness
        self._weight = 1.0 / workers
        self._clocks = dict.fromkeys(range(workers), 0)  # of those who are not done
        self._waiting: dict[int, int] = {}

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        worker = push.worker
        self._clocks[worker] += 1
        self._waiting[worker] = self._clocks[worker]
        return (LogEntry((Contribution(worker, push.push, self._weight),), self._free()),)

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        del self._clocks[worker]
        free = self._free()
        return (LogEntry(release=free),) if free else ()

    def on_lost(self, worker: int) -> None:
        self._waiting.pop(worker, None)

    def on_back(self, workers: Sequence[int]) -> None:
        self._clocks.update(dict.fromkeys(workers, 0))  # nobody else has a clock: they are equally far

    def restore(self, point: CheckpointPoint) -> None:
        self._clocks = dict(enumerate(point.clocks))

    def _free(self) -> tuple[int, ...]:
        slowest = min(self._clocks.values(), default=math.inf)
        free = sorted(worker for worker, clock in self._waiting.items() if clock - slowest <= self._bound)
        for worker in free:
            del self._waiting[worker]
        return tuple(free)


def create(workers: int, staleness: int) -> Policy:
    """Makes ssp with a bound of `staleness` steps."""
    if staleness == 0:
        return Synchronous(workers)
    return BoundedStaleness(workers, staleness)
