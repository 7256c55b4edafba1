"""EASGD's orders in which nobody waits for a turn: the centre lies in memory that the node's workers share.

async: each exchange is a whole, under a lock that is held for one pass over the vector. hogwild: the same without the
lock, element by element (You, Buluc and Demmel 2017), so that what another worker adds to an element meanwhile may be
lost. Who exchanges writes to the centre itself: no message is sent.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item, OwnFacts
from psgd.collectives.mpi.liveness import Liveness
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.memory import counters
from psgd.metrics.totals import Sums
from psgd.runtime.jsonable import JSON
from psgd.strategies.easgd.exchange_order import ExchangeOrder
from psgd.strategies.easgd.shared_centre import SharedCentre
from psgd.strategies.easgd.shared_counts import SharedCounts
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.checkpoint_barrier import CheckpointBarrier
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes


class SharedOrder(ExchangeOrder):
    """A worker's part, in which exchanges exclude each other where it `locks`.

    Raises:
        UsageError: the workers do not share memory; on all alike.
    """

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int, locks: bool) -> None:
        self._metrics, self._params = context.metrics, context.params
        self._workers = workers = context.workers
        self._members = list(range(workers.size))  # which workers there are
        self._liveness = self._watch(context)
        self._memory = SharedCentre(workers, self._liveness.node, self._params, locks)
        self._lines, self.centre = self._memory.lines, self._memory.params
        self._counts = SharedCounts(context.metrics, workers, self._memory)
        self.displacement: Vector = np.empty_like(self._params)
        self._waiter = Waiter.for_node(workers, self._liveness.check)
        self._votes, self._barrier = votes, CheckpointBarrier(workers, votes, self._liveness, self._waiter)
        self._kept = np.empty_like(self.centre) if workers.rank == 0 else None  # the centre at the newest checkpoint
        self._kept_exchanges = 0  # those behind it
        self._began = 0.0
        self._begun = self._lines.samples()  # of each worker, where this run began

    def _watch(self, context: RunContext) -> Any:
        """What waits call to look after the others. Collective over the workers, blocks."""
        return Liveness(context.workers, context.alarm)

    def begin(self, resumed: bool) -> None:
        self._memory.compile(self._params)
        if not resumed:
            self._waiter.soon(self._workers.Ibcast(self._params, 0).Test)
            if self._workers.rank == 0:
                self.centre[:] = self._params
        self._waiter.soon(self._workers.Ibarrier().Test)
        if resumed:
            self._counts.begin()
            self._begun = self._lines.samples()
            self._waiter.soon(self._workers.Ibarrier().Test)  # until worker 0 has read what nobody adds to yet
        self._metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        self._liveness.check()
        self._counts.note(samples, loss)
        self._counts.look()
        _, self.samples, _, stop = self._lines.totals()
        self.stop = stop != 0

    def pull(self, rate: float, lr: float) -> None:
        self._counts.lr = lr
        place = self._memory.exchange(self.displacement, self._params, rate, self._waiter)
        self._counts.exchanged(place - 1 - self.version)
        self.version = place

    def meet(self, steps: int) -> None:
        if self._barrier.due(steps):
            self._save(steps)

    def _save(self, steps: int) -> bool:
        """Makes a checkpoint with all; whether nobody has died in it. Blocks."""
        self._checkpoint(steps)
        return True

    def _checkpoint(self, steps: int) -> None:
        """Nobody is in a step now; worker 0 keeps the centre, which others may change once they continue."""
        self._barrier.enter(steps)
        if self._kept is not None:
            self._kept[:] = self.centre
        self._counts.show()
        _, self.samples, _, _ = self._lines.totals()
        self._kept_exchanges = self._memory.exchanges
        self._barrier.leave()

    def _own_facts(self) -> dict[str, JSON]:
        return self._counts.facts(self.version)

    def _restore_own(self, facts: Mapping[str, JSON]) -> None:
        self.version = self._counts.restore(facts)

    def kept(self) -> list[Item]:
        centre = {} if self._kept is None else {"centre": self._kept}
        return [
            Arrays(centre, Combine.ALIKE, weights="centre"),
            Fact("version", self, "_kept_exchanges"),
            Fact("samples", self),
            OwnFacts(self._own_facts, self._restore_own),
        ]

    def after_restore(self, own: bool) -> None:
        """With another number of workers, worker 0 stands for what all have done."""
        if self._kept is not None:
            self.centre[:] = self._kept
            self._memory.exchanges = self._kept_exchanges
        if not own:
            self.version = self._kept_exchanges
            self._lines.set_line(Sums(0, 0 if self._kept is None else self.samples, 0.0))

    def report(self, accuracy: float, loss: float) -> None:
        self._counts.report(accuracy, loss)

    def finish(self, waited_s: float) -> None:
        computed = time.perf_counter() - self._began - waited_s
        self._counts.exchanged(self._memory.exchanges - self.version)
        self._end()
        self._counts.complete(self._workers, self._members, waited_s, computed)
        self.version = self._memory.exchanges
        self._liveness.close()

    def _end(self) -> None:
        """Waits until all are done. Blocks."""
        self._say_done()
        self._waiter.until(self._all_done)

    def _say_done(self) -> None:
        self._lines.put(counters.DONE, 1)

    def _all_done(self) -> bool:
        self._counts.look()
        # One that still trains may call for a checkpoint, which all meet for: also those that only wait for the end.
        if self._barrier.called() and self._save(0):
            self._votes.on_reached()
        return self._lines.done(self._members)
