"""EASGD's orders in which nobody waits for a turn: the centre lies in memory that the node's workers share.

async: each exchange is a whole, under a lock that is held for one pass over the vector. hogwild: the same without the
lock, element by element (You, Buluc and Demmel 2017), so that what another worker adds to an element meanwhile may be
lost. Who exchanges writes to the centre itself: no message is sent.
"""

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint import vectors
from psgd.checkpoint.state import State
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels import elastic
from psgd.kernels.errors import UsageError
from psgd.kernels.memory import counters as lines
from psgd.runtime.agreement import gather
from psgd.worker.checkpoint_barrier import CheckpointBarrier
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.context import RunContext
from psgd.worker.liveness import Liveness
from psgd.worker.shared_parameters import share

_SPINS = 1000
_SHOW_S = 5e-3


class SharedOrder:
    """A worker's part. Implements `psgd.strategies.easgd.easgd.ExchangeOrder`.

    Each worker has a cache line for its counters (`psgd.kernels.memory.counters`); the lock and the number of exchanges
    have one of their own, in front of the centre.

    Args:
        context: what to work with.
        cuts: this worker's, which all meet for.
        period: steps from one exchange to the next.
        locks: exchanges exclude each other.

    Attributes:
        exchanged: exchanges that had ended before this worker's last one: with the lock, its place in their order.

    Raises:
        UsageError: the workers do not share memory; on all alike.
    """

    def __init__(self, context: RunContext, cuts: CheckpointVotes, period: int, locks: bool) -> None:
        self.samples = self.version = 0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self.exchanged = -1
        self._context, self._params, self._locks = context, context.params, locks
        workers: MPI.Intracomm = context.mesh.worker  # type: ignore[assignment]
        self._workers, self._rank, self._size = workers, workers.rank, workers.size
        self._watch = Liveness(workers, context.alarm)
        name = "async" if locks else "hogwild"
        if len(self._watch.node) < self._size:
            raise UsageError(
                f"easgd_order: {name} needs all workers on one node, whose memory they share, "
                f"got {self._size} workers on several: use sync or round-robin"
            )
        first, like = lines.LINE_BYTES * self._size, self._params
        who = f"easgd_order {name} (sync and round-robin need no shared memory)"
        memory = share(workers, self._watch.node, first + lines.LINE_BYTES + like.nbytes, who)
        self._at = address_of(memory)
        self._words = self._at + first
        self._lines = memory[:first].view(np.int64).reshape(self._size, lines.LINE_WORDS)
        self._losses = self._lines.view(np.float64)[:, lines.LOSS]
        self._exchanges = memory[first : first + lines.LINE_BYTES].view(np.int64)[elastic.EXCHANGES :]
        self.centre: NDArray[np.floating] = memory[first + lines.LINE_BYTES :].view(like.dtype)
        self.displacement: NDArray[np.floating] = np.empty_like(like)
        self._waiter = Waiter.for_node(workers, self._watch.check)
        self._cuts, self._meeting = cuts, CheckpointBarrier(workers, cuts, self._watch, self._waiter)
        self._kept: NDArray[np.floating] | None = None  # the centre at the newest cut, on worker 0
        self._resumed, self._cut_exchanges = False, 0
        self._rate = self._lr = 0.0
        self._staleness: Counter[int] = Counter()
        self._steps = self._told = 0
        self._counted = [(0, 0, 0.0)] * self._size  # steps, samples and losses
        self._began = self._next_show = 0.0

    def begin(self) -> None:
        """See `ExchangeOrder`."""
        none = self._params[:0]
        spare = np.zeros(2, np.int64)
        elastic.exchange(none, none, none, 0.0, address_of(spare))
        elastic.exchange_locked(none, none, none, 0.0, address_of(spare), 0, 1)
        lines.count(self._at, self._rank, 0, 0.0)
        lines.put(self._at, self._rank, lines.STEPS, 0)
        lines.totals(self._at, self._size)
        if not self._resumed:
            self._waiter.soon(self._workers.Ibcast(self._params, 0).Test)
            if self._rank == 0:
                self.centre[:] = self._params
        self._waiter.soon(self._workers.Ibarrier().Test)
        if self._resumed:
            for worker, line in enumerate(self._lines.tolist()):
                self._counted[worker] = line[lines.STEPS], line[lines.SAMPLES], self._losses[worker].item()
            self._waiter.soon(self._workers.Ibarrier().Test)  # until worker 0 has read what nobody adds to yet
        self._context.metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        """See `ExchangeOrder`."""
        self._watch.check()
        if samples:
            self._steps += 1
            lines.count(self._at, self._rank, samples, float(loss))
        if self._rank == 0:
            self._show()
        _, self.samples, _, stop = lines.totals(self._at, self._size)
        self.stop = stop != 0

    def pull(self, rate: float, lr: float) -> None:
        """See `ExchangeOrder`."""
        self._rate, self._lr = rate, lr
        if self._locks:
            self._waiter.soon(self._exchange)
        else:
            self.exchanged = elastic.exchange(self.displacement, self._params, self.centre, rate, self._words)
        self._staleness[self.exchanged - self.version] += self._steps - self._told
        self._told = self._steps
        self.version = self.exchanged + 1

    def _exchange(self) -> bool:
        arrays = self.displacement, self._params, self.centre
        self.exchanged = elastic.exchange_locked(*arrays, self._rate, self._words, self._rank, _SPINS)
        return self.exchanged >= 0

    def push(self) -> None:
        """See `ExchangeOrder`."""

    def meet(self, steps: int) -> None:
        """See `ExchangeOrder`."""
        wanted = self._meeting.wanted(steps)
        if wanted:
            self._meeting.call(range(self._size))
        if wanted or self._meeting.called():
            self._cut(steps)

    def _cut(self, steps: int) -> None:
        """Nobody is in a step now; worker 0 keeps the centre, which others may change once they go on."""
        self._meeting.come(steps)
        if self._rank == 0:
            self._kept = np.empty_like(self.centre) if self._kept is None else self._kept
            self._kept[:] = self.centre
            self._count()
        _, self.samples, _, _ = lines.totals(self._at, self._size)
        self._cut_exchanges = int(self._exchanges[0])
        self._meeting.part()

    def state(self) -> State:
        """See `ExchangeOrder`."""
        line = self._lines[self._rank]
        facts = {
            "version": self._cut_exchanges,
            "samples": self.samples,
            "exchange": [self.version, self._told, self._steps],
            "line": line[[lines.STEPS, lines.SAMPLES]].tolist(),
            "loss": self._losses[self._rank].item(),
            "staleness": [list(each) for each in self._staleness.items()],
        }
        return State({}, facts) if self._kept is None else State({"centre": self._kept}, {"weights": "centre"} | facts)

    def restore(self, state: State | None, others: Sequence[State]) -> None:
        """See `ExchangeOrder`. With another number of workers, worker 0 stands for what all have done."""
        saved = keeping.saved(state, others)
        self._resumed, self.samples = True, keeping.common(saved, "samples")
        self._cuts.resume(saved)
        if self._rank == 0:
            self.centre[:] = vectors.weights(saved)
            self._exchanges[0] = keeping.common(saved, "version")
        if state is not None:
            self.version, self._told, self._steps = keeping.fact(state, "exchange")
            steps, samples = keeping.fact(state, "line")
            self._losses[self._rank] = keeping.fact(state, "loss")
            self._staleness.update(dict(keeping.fact(state, "staleness")))
        else:
            self.version = keeping.common(saved, "version")
            steps, samples = 0, self.samples if self._rank == 0 else 0
        lines.put(self._at, self._rank, lines.STEPS, steps)
        lines.put(self._at, self._rank, lines.SAMPLES, samples)

    def _show(self) -> None:
        """Counts what workers did since the last time; on worker 0."""
        now = time.perf_counter()
        if now >= self._next_show:
            self._next_show = now + _SHOW_S
            self._count()
        self._tell_stop()

    def _count(self) -> None:
        metrics = self._context.metrics
        for worker, (steps, samples, loss) in enumerate(self._counted):
            more, now = self._lines[worker, (lines.STEPS, lines.SAMPLES)].tolist()
            if more > steps:
                sum_now = self._losses[worker].item()
                metrics.count(worker, more - steps, now - samples, sum_now - loss)
                self._counted[worker] = more, now, sum_now
        metrics.progress(sum(samples for _, samples, _ in self._counted), int(self._exchanges[0]), self._lr)

    def _tell_stop(self) -> None:
        if self._rank == 0 and self._context.metrics.stop:
            lines.put(self._at, 0, lines.STOP, 1)

    def report(self, accuracy: float, loss: float) -> None:
        """See `ExchangeOrder`."""
        self._context.metrics.report(accuracy, loss)
        self._tell_stop()

    def finish(self, waited_s: float) -> None:
        """See `ExchangeOrder`."""
        computed = time.perf_counter() - self._began - waited_s
        self._staleness[int(self._exchanges[0]) - self.version] += self._steps - self._told
        self._told = self._steps
        lines.put(self._at, self._rank, lines.DONE, 1)
        self._waiter.until(self._all_done)
        told = gather(self._workers, {"staleness": list(self._staleness.items()), "seconds": [waited_s, computed]})
        self.version = int(self._exchanges[0])
        self._watch.close()
        if self._rank == 0:
            self._count()
            self._context.metrics.staleness.clear()
            for worker, answer in enumerate(told):
                self._context.metrics.staleness.update(dict(answer["staleness"]))
                self._context.metrics.ended(worker, *answer["seconds"])

    def _all_done(self) -> bool:
        if self._rank == 0:
            self._show()
        if self._meeting.called():
            self._cut(0)
            self._cuts.on_cut()
        return lines.totals(self._at, self._size)[2] == self._size
