"""EASGD's original order: the centre goes round the workers, 0, 1, ..., and each exchanges with it in turn.

One exchange after the other, P messages of the whole vector for each round: what the synchronous order replaces by an
all-reduce. A worker that is done hands the centre on unchanged until all are; then the centre goes round once more.
What worker 0 has to know travels with it.

So does the word that a round is a checkpoint: worker 0 says so, and each worker stands at it in its turn, as the others
did in theirs. Nobody waits. Only the centre is under way, which the last worker has sent on; that worker saves it, and
with it what worker 0 has still to receive.
"""

import time
import weakref

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels import elastic
from psgd.strategies.easgd.tally import ExchangeCounts
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.liveness import Liveness

Vector = NDArray[np.floating]

_VERSION, _TOTAL, _STOP, _LAST, _REQUEST, _SAVE, _STEP, _HEAD = range(8)
"""Exchanges; samples; worker 0 asks to stop; who found that all are done; a request for a checkpoint; whether this
round is one, and what it is called."""
_PUSHES, _SAMPLES, _LOSS, _STALENESS, _DONE, _WAITED, _COMPUTED, _WORDS = range(8)  # of each worker's last turn


class RoundRobinOrder:
    """A worker's part. Implements `psgd.strategies.easgd.easgd.ExchangeOrder`.

    The next centre is received into a buffer of its own, from the moment that the last one was used, so that the
    worker before this one need not wait long; `centre` is what this worker sent on last.
    """

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int) -> None:
        self._votes, self._period = votes, period
        self._turns = 0  # of worker 0
        self.samples = self.version = 0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._params, self._metrics = context.params, context.metrics
        workers = context.workers
        self._liveness = Liveness(workers, context.alarm)
        self._waiter = Waiter.for_node(workers, self._liveness.check)
        self._comm = comm = workers.Dup()
        self._rank, self._size = comm.rank, comm.size
        self._left, self._right = (self._rank - 1) % self._size, (self._rank + 1) % self._size
        self.displacement: Vector = np.empty_like(self._params)
        self.centre: Vector = np.empty_like(self._params)
        self._incoming: Vector = np.empty_like(self._params)
        self._head_in, self._head = (np.zeros(_HEAD + _WORDS * self._size) for _ in range(2))
        self._lines = self._head[_HEAD:].reshape(self._size, _WORDS)
        self._receives = [comm.Recv_init(each, self._left, Tag.DATA) for each in (self._head_in, self._incoming)]
        self._sends = [comm.Send_init(each, self._right, Tag.DATA) for each in (self._head, self.centre)]
        self._both = [*self._receives, *self._sends]
        self._close = weakref.finalize(self, close, self._receives, self._sends)
        self._tally = ExchangeCounts()
        self._here = self._rank == 0  # the centre, before its first round
        self._lr = 0.0
        self._began = time.perf_counter()

    def begin(self, resumed: bool) -> None:
        none = self._params[:0]
        elastic.forward(none, none, none, none, 0.0)
        if resumed:
            for array in (self.centre, self._head):
                self._waiter.soon(self._comm.Ibcast(array, self._size - 1).Test)
            self._head_in[:] = self._head
        else:
            self._waiter.soon(self._comm.Ibcast(self._params, 0).Test)
            self.centre[:] = self._params
            self._head_in[_LAST] = -1
        if self._here:
            self._incoming[:] = self.centre
        else:
            MPI.Prequest.Startall(self._receives)
        self._metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        """Lets the next centre come."""
        self._liveness.check()
        if not self._here:
            self._liveness.passed(self._receives)
        self._tally.note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        """Waits for the centre and sends it on."""
        self._lr = lr
        self._take()
        elastic.forward(self.displacement, self._params, self._incoming, self.centre, rate)
        self._tell()
        self._head[_VERSION] += 1
        self.version = int(self._head[_VERSION])
        MPI.Prequest.Startall(self._both)

    def push(self) -> None:
        """Waits until the next worker has the centre."""
        self._sent()

    def _take(self) -> None:
        """Waits for the centre and for what comes with it."""
        if self._here:
            self._here = False
        else:
            self._waiter.soon(self._came)
            self.bytes_received += self._incoming.nbytes + self._head_in.nbytes
        self._head[:] = self._head_in
        if self._rank == 0:
            self._count()
        self._decide()
        self.stop = bool(self._head[_STOP])

    def _decide(self) -> None:
        """Whether this round is a checkpoint. Worker 0 says so; the last one, which only brings the centre, is none."""
        head, votes = self._head, self._votes
        request = votes.take_request()
        if request > head[_SAVE] or self._rank == 0:  # else this very checkpoint fulfils it
            head[_REQUEST] = max(head[_REQUEST], request)
        if self._rank > 0:
            votes.follow(int(head[_SAVE]), int(head[_STEP]))
            return
        self._turns += 1
        head[_SAVE] = 0
        if head[_LAST] < 0:
            votes.decide(int(head[_REQUEST]), self._turns * self._period)
            head[_REQUEST] = 0
            head[_SAVE], head[_STEP] = votes.reached * (1 + votes.stopping), votes.step

    def meet(self, steps: int) -> None:
        """Nothing: a checkpoint is made at the worker's turn."""

    @property
    def _exchanges(self) -> int:
        """All exchanges, at this worker's turn."""
        return int(self._head[_VERSION])

    @_exchanges.setter
    def _exchanges(self, value: int) -> None:
        self._head[_VERSION] = value

    @property
    def _total(self) -> int:
        """Samples of all workers, at this worker's turn."""
        return int(self._head[_TOTAL])

    @_total.setter
    def _total(self, value: int) -> None:
        self._head[_TOTAL] = value

    def kept(self) -> list[Item]:
        """With another number of workers what worker 0 has still to receive is not counted."""
        last = self._size - 1
        return [
            Arrays({"centre": self.centre}, Combine.ALIKE, owner=last, weights="centre"),
            Arrays({"head": self._head}, Combine.FRESH, owner=last),
            Fact("version", self, "_exchanges"),
            Fact("samples", self, "_total"),
            Fact("exchange", self, "version", Combine.FRESH),
            Fact("known", self, "samples", Combine.FRESH),
        ]

    def after_restore(self, own: bool) -> None:
        if not own:
            self.version, self.samples = self._exchanges, self._total
        self._head[[_STOP, _LAST, _REQUEST, _SAVE]] = 0, -1, 0, 0
        self._lines[:, _DONE:] = 0
        self._turns = self._votes.decided_at // self._period

    def _came(self) -> bool:
        return self._liveness.passed(self._receives)

    def _sent(self) -> None:
        self._waiter.soon(self._gone)
        self.bytes_sent += self.centre.nbytes + self._head.nbytes

    def _gone(self) -> bool:
        return self._liveness.passed(self._sends)

    def _tell(self) -> None:
        """Writes this worker's line."""
        tally, line, version = self._tally, self._lines[self._rank], int(self._head[_VERSION])
        line[:_DONE] = tally.pushes, tally.samples, tally.loss, version - self.version
        self._head[_TOTAL] += tally.samples
        self.samples = int(self._head[_TOTAL])
        tally.clear()
        if self._rank == 0:
            self._count_line(0)
            self._metrics.progress(self.samples, version, self._lr)

    def _count(self) -> None:
        """Worker 0 counts what the others wrote since its last turn, and says whether to stop."""
        self._head[_STOP] = self._metrics.stop
        for worker in range(1, self._size):
            self._count_line(worker)

    def _count_line(self, worker: int) -> None:
        pushes, samples, loss, staleness, *_ = self._lines[worker].tolist()
        self._lines[worker, :_DONE] = 0
        self._metrics.count(worker, int(pushes), int(samples), loss, int(staleness))

    def report(self, accuracy: float, loss: float) -> None:
        self._metrics.report(accuracy, loss)

    def finish(self, waited_s: float) -> None:
        computed = time.perf_counter() - self._began - waited_s
        while not self._hand_on(waited_s, computed):
            pass
        self.version, self.samples = int(self._head[_VERSION]), int(self._head[_TOTAL])
        if self._rank == 0:
            self._metrics.progress(self.samples, self.version, self._lr)
            for worker, line in enumerate(self._lines.tolist()):
                self._metrics.ended(worker, line[_WAITED], line[_COMPUTED])
        self._close()
        self._liveness.close()
        self._comm.Free()

    def _hand_on(self, waited_s: float, computed_s: float) -> bool:
        """Sends the centre on unchanged; whether this was the last time."""
        self._take()
        np.copyto(self.centre, self._incoming)
        last = int(self._head[_LAST])
        if last < 0:
            self._tell()
            self._lines[self._rank, _DONE:] = 1, waited_s, computed_s
            if self._lines[:, _DONE].all():
                self._head[_LAST] = self._rank
        if self._head[_LAST] < 0:
            MPI.Prequest.Startall(self._receives)
        if self._right != last:
            MPI.Prequest.Startall(self._sends)
            self._sent()
        if self._votes.reached:
            self._votes.on_reached()
        return bool(self._head[_LAST] >= 0)
