"""EASGD's orders in which nobody waits for a turn: the centre lies in memory that the node's workers share.

async: each exchange is a whole, under a lock that is held for one pass over the vector. hogwild: the same without the
lock, element by element (You, Buluc and Demmel 2017), so that what another worker adds to an element meanwhile may be
lost. Who exchanges writes to the centre itself: no message is sent.
"""

import time
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item, OwnFacts
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels import elastic
from psgd.kernels.errors import UsageError
from psgd.kernels.memory import counters
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.totals import Sums
from psgd.runtime.agreement import gather
from psgd.runtime.jsonable import JSON
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.checkpoint_barrier import CheckpointBarrier
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.counter_lines import BYTES, CounterLines
from psgd.worker.serverless.liveness import Liveness
from psgd.worker.serverless.shared_parameters import share

_SPINS = 1000
_SHOW_S = 5e-3


class SharedOrder:
    """A worker's part. Implements `psgd.strategies.easgd.exchange_order.ExchangeOrder`.

    Each worker has a cache line for its counters; the lock and the number of exchanges have one of their own, in front
    of the centre.

    Args:
        context: what to work with.
        votes: this worker's, for the checkpoints that all meet for.
        period: steps from one exchange to the next.
        locks: exchanges exclude each other.

    Attributes:
        exchanged: exchanges that had ended before this worker's last one: with the lock, its place in their order.

    Raises:
        UsageError: the workers do not share memory; on all alike.
    """

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int, locks: bool) -> None:
        self.samples = self.version = 0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self.exchanged = -1
        self._metrics, self._params, self._locks = context.metrics, context.params, locks
        workers = context.workers
        self._workers, self._rank, self._size = workers, workers.rank, workers.size
        self._liveness = Liveness(workers, context.alarm)
        self._allocate("async" if locks else "hogwild")
        self.displacement: Vector = np.empty_like(self._params)
        self._waiter = Waiter.for_node(workers, self._liveness.check)
        self._votes, self._barrier = votes, CheckpointBarrier(workers, votes, self._liveness, self._waiter)
        self._kept: Vector | None = None  # the centre at the newest checkpoint, on worker 0
        self._kept_exchanges = 0  # those behind it
        self._rate = self._lr = 0.0
        self._staleness: Counter[int] = Counter()
        self._steps = self._counted = 0  # of this worker; of them, in `_staleness`
        self._progress = _Progress(self._metrics, self._lines, self._size)
        self._began = self._next_show = 0.0

    def _allocate(self, name: str) -> None:
        if len(self._liveness.node) < self._size:
            raise UsageError(
                f"easgd_order: {name} needs all workers on one node, whose memory they share, "
                f"got {self._size} workers on several: use sync or round-robin"
            )
        first, like = BYTES * self._size, self._params
        who = f"easgd_order {name} (sync and round-robin need no shared memory)"
        memory = share(self._workers, self._liveness.node, first + BYTES + like.nbytes, who)
        self._lines = CounterLines(memory[:first], self._rank)
        self._words = address_of(memory) + first  # of the lock and the number of exchanges
        self._exchanges: NDArray[np.int64] = memory[first : first + BYTES].view(np.int64)[elastic.EXCHANGES :]
        self.centre: Vector = memory[first + BYTES :].view(like.dtype)

    def begin(self, resumed: bool) -> None:
        none = self._params[:0]
        spare = np.zeros(2, np.int64)
        elastic.exchange(none, none, none, 0.0, address_of(spare))
        elastic.exchange_locked(none, none, none, 0.0, address_of(spare), 0, 1)
        self._lines.compile()
        if not resumed:
            self._waiter.soon(self._workers.Ibcast(self._params, 0).Test)
            if self._rank == 0:
                self.centre[:] = self._params
        self._waiter.soon(self._workers.Ibarrier().Test)
        if resumed:
            self._progress.skip()
            self._waiter.soon(self._workers.Ibarrier().Test)  # until worker 0 has read what nobody adds to yet
        self._metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        self._liveness.check()
        if samples:
            self._steps += 1
            self._lines.count(samples, loss)
        if self._rank == 0:
            self._show()
        _, self.samples, _, stop = self._lines.totals()
        self.stop = stop != 0

    def pull(self, rate: float, lr: float) -> None:
        self._rate, self._lr = rate, lr
        if self._locks:
            self._waiter.soon(self._exchange)
        else:
            self.exchanged = elastic.exchange(self.displacement, self._params, self.centre, rate, self._words)
        self._count_staleness(self.exchanged)
        self.version = self.exchanged + 1

    def _exchange(self) -> bool:
        """Tries for some spins to get the lock, so that a wait can look after the others between two tries."""
        arrays = self.displacement, self._params, self.centre
        self.exchanged = elastic.exchange_locked(*arrays, self._rate, self._words, self._rank, _SPINS)
        return self.exchanged >= 0

    def _count_staleness(self, exchanges: int) -> None:
        """Of the steps since this worker's last exchange: the others' exchanges with the centre since then."""
        self._staleness[exchanges - self.version] += self._steps - self._counted
        self._counted = self._steps

    def push(self) -> None:
        """Nothing: the centre has been written to already."""

    def meet(self, steps: int) -> None:
        if self._barrier.due(steps):
            self._checkpoint(steps)

    def _checkpoint(self, steps: int) -> None:
        """Nobody is in a step now; worker 0 keeps the centre, which others may change once they continue."""
        self._barrier.enter(steps)
        if self._rank == 0:
            np.copyto(self._kept_centre(), self.centre)
            self._progress.count(int(self._exchanges[0]), self._lr)
        _, self.samples, _, _ = self._lines.totals()
        self._kept_exchanges = int(self._exchanges[0])
        self._barrier.leave()

    def _kept_centre(self) -> Vector:
        if self._kept is None:
            self._kept = np.empty_like(self.centre)
        return self._kept

    def _own_facts(self) -> dict[str, JSON]:
        line = self._lines.line(self._rank)
        return {
            "exchange": [self.version, self._counted, self._steps],
            "line": [line.steps, line.samples],
            "loss": line.loss,
            "staleness": self._staleness_counts(),
        }

    def _restore_own(self, facts: Mapping[str, JSON]) -> None:
        self.version, self._counted, self._steps = facts["exchange"]
        steps, samples = facts["line"]
        self._lines.set_line(Sums(steps, samples, facts["loss"]))
        self._staleness.update(dict(facts["staleness"]))

    def _staleness_counts(self) -> list[list[int]]:
        return [list(each) for each in self._staleness.items()]

    def kept(self) -> list[Item]:
        return [
            Arrays({"centre": self._kept_centre()} if self._rank == 0 else {}, Combine.ALIKE, weights="centre"),
            Fact("version", self, "_kept_exchanges"),
            Fact("samples", self),
            OwnFacts(self._own_facts, self._restore_own),
        ]

    def after_restore(self, own: bool) -> None:
        """With another number of workers, worker 0 stands for what all have done."""
        if self._rank == 0:
            self.centre[:] = self._kept_centre()
            self._exchanges[0] = self._kept_exchanges
        if not own:
            self.version = self._kept_exchanges
            self._lines.set_line(Sums(0, self.samples if self._rank == 0 else 0, 0.0))

    def _show(self) -> None:
        """Counts what workers did since the last time; on worker 0."""
        now = time.perf_counter()
        if now >= self._next_show:
            self._next_show = now + _SHOW_S
            self._progress.count(int(self._exchanges[0]), self._lr)
        self._pass_stop_on()

    def _pass_stop_on(self) -> None:
        if self._rank == 0 and self._metrics.stop:
            self._lines.put(counters.STOP, 1)

    def report(self, accuracy: float, loss: float) -> None:
        self._metrics.report(accuracy, loss)
        self._pass_stop_on()

    def finish(self, waited_s: float) -> None:
        computed = time.perf_counter() - self._began - waited_s
        self._count_staleness(int(self._exchanges[0]))
        self._lines.put(counters.DONE, 1)
        self._waiter.until(self._all_done)
        all_counts = gather(self._workers, {"staleness": self._staleness_counts(), "seconds": [waited_s, computed]})
        self.version = int(self._exchanges[0])
        self._liveness.close()
        if self._rank == 0:
            self._progress.count(self.version, self._lr)
            self._metrics.staleness.clear()
            for worker, counts in enumerate(all_counts):
                self._metrics.staleness.update(dict(counts["staleness"]))
                self._metrics.ended(worker, *counts["seconds"])

    def _all_done(self) -> bool:
        if self._rank == 0:
            self._show()
        if self._barrier.called():
            self._checkpoint(0)
            self._votes.on_reached()
        return self._lines.all_done()


class _Progress:
    """What worker 0's metrics know of the workers' counters."""

    def __init__(self, metrics: RunMetrics, lines: CounterLines, workers: int) -> None:
        self._metrics, self._lines = metrics, lines
        self._counted = [Sums(0, 0, 0.0)] * workers

    def skip(self) -> None:
        """All that has been counted until now they knew before this run resumed."""
        self._counted = [self._lines.line(worker) for worker in range(len(self._counted))]

    def count(self, exchanges: int, lr: float) -> None:
        """Tells what is new."""
        for worker, before in enumerate(self._counted):
            now = self._lines.line(worker)
            if now.steps > before.steps:
                self._metrics.count(
                    worker, now.steps - before.steps, now.samples - before.samples, now.loss - before.loss
                )
                self._counted[worker] = now
        self._metrics.progress(sum(each.samples for each in self._counted), exchanges, lr)
