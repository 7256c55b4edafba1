"""EASGD's original order: the centre goes round the workers, 0, 1, ..., and each exchanges with it in turn.

One exchange after the other, P messages of the whole vector for each round: what the synchronous order replaces by an
all-reduce. A worker that is done hands the centre on unchanged until all are; then the centre goes round once more.
What worker 0 has to know travels with it.

So does the word that a round is a checkpoint: worker 0 says so, and each worker stands at it in its turn, as the others
did in theirs. Nobody waits. Only the centre is under way, which the last worker has sent on; that worker saves it, and
with it what worker 0 has still to receive.
"""

import time
from typing import Any

import numpy as np

from psgd.checkpoint import restore
from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.kernels import elastic
from psgd.runtime.agreement import gather
from psgd.strategies.easgd.centre_ring import CentreRing
from psgd.strategies.easgd.exchange_order import ExchangeOrder
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.exchange_counts import ExchangeCounts

_VERSION, _TOTAL, _STOP, LAST, _REQUEST, _SAVE, _STEP, _HEAD = range(8)
"""Exchanges; samples; worker 0 asks to stop; who found that all are done; a request for a checkpoint; whether this
round is one, and what it is called."""
_PUSHES, _SAMPLES, _LOSS, STALENESS, DONE, _WAITED, _COMPUTED, _WORDS = range(8)  # of each worker's last turn


class RoundRobinOrder(ExchangeOrder):
    """A worker's part. A checkpoint is made at its turn.

    `centre` is what this worker sent on last. Bytes are counted once it is done.
    """

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int) -> None:
        self._votes, self._period = votes, period
        self._turns = 0  # of worker 0
        self._params, self._metrics = context.params, context.metrics
        self._workers, self._all = context.workers, context.workers.size
        words = _HEAD + _WORDS * self._all
        self._ring = ring = self._made_ring(context, words)
        self._rank, self._head, self.centre = ring.rank, ring.head[:words], ring.centre
        self._leads, self._members = self._rank == 0, list(range(ring.size))
        self._head[LAST] = -1
        self._lines = self._lines_of(self._head)
        self.displacement: Vector = np.empty_like(self._params)
        self._reports = list[tuple[float, float]]()
        self._tally = ExchangeCounts()
        self._lr = self._began = 0.0

    def _lines_of(self, head: Vector) -> Vector:
        """The workers' lines in a head; a view."""
        return head[_HEAD : _HEAD + _WORDS * self._all].reshape(-1, _WORDS)

    def _made_ring(self, context: RunContext, words: int) -> Any:
        """Collective over all workers, blocks."""
        return CentreRing(context, words)

    def begin(self, resumed: bool) -> None:
        none = self._params[:0]
        elastic.forward(none, none, none, none, 0.0)  # compiles now, so that no step waits for it
        self._ring.begin(self._params, resumed)
        self._metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        """Lets the next centre come."""
        self._ring.check()
        self._tally.note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        """Waits for the centre and sends it on."""
        self._lr = lr
        self._take()
        elastic.forward(self.displacement, self._params, self._ring.incoming, self.centre, rate)
        self._tell()
        self._exchanges += 1
        self.version = self._exchanges
        self._ring.expect()
        self._ring.send()

    def push(self) -> None:
        """Waits until the next worker has the centre."""
        self._ring.wait_sent()

    def _take(self) -> None:
        """Waits for the centre and for what comes with it."""
        self._ring.receive()
        if self._leads:
            self._count()
        self._decide()
        self.stop = bool(self._head[_STOP])

    def _decide(self) -> None:
        """Whether this round is a checkpoint. Worker 0 says so; the last one, which only brings the centre, is none."""
        head, votes = self._head, self._votes
        request = votes.take_request()
        if request > head[_SAVE] or self._leads:  # else this very checkpoint fulfils it
            head[_REQUEST] = max(head[_REQUEST], request)
        if not self._leads:
            votes.follow(int(head[_SAVE]), int(head[_STEP]))
            return
        self._turns += 1
        head[_SAVE] = 0
        if head[LAST] < 0:
            votes.decide(int(head[_REQUEST]), self._turns * self._period)
            head[_REQUEST] = 0
            head[_SAVE], head[_STEP] = votes.reached * (1 + votes.stopping), votes.step

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
        last = self._ring.size - 1
        return [
            Arrays({"centre": self.centre}, Combine.ALIKE, owner=last, weights="centre"),
            Arrays({"head": self._head}, Combine.FRESH, owner=last),
            Fact("version", self, "_exchanges"),
            Fact("samples", self, "_total"),
            Fact("exchange", self, "version", Combine.FRESH),
            Fact("known", self, "samples", Combine.FRESH),
        ]

    def after_restore(self, own: bool) -> None:
        restore.check_counts("head", self._head[:_HEAD])
        restore.check_counts("head", self._lines[:, (_PUSHES, _SAMPLES, STALENESS)])
        if not own:
            self.version, self.samples = self._exchanges, self._total
        self._head[[_STOP, LAST, _REQUEST, _SAVE]] = 0, -1, 0, 0
        self._lines[:, DONE:] = 0
        self._turns = self._votes.decided_at // self._period

    def _tell(self) -> None:
        """Writes this worker's line."""
        tally, line, version = self._tally, self._lines[self._rank], self._exchanges
        line[:DONE] = tally.pushes, tally.samples, tally.loss, version - self.version
        self._total += tally.samples
        self.samples = self._total
        tally.clear()
        if self._leads:
            self._count_line(self._rank)
            self._metrics.progress(self.samples, version, self._lr)

    def _count(self) -> None:
        """Worker 0 counts what the others wrote since its last turn, and says whether to stop."""
        self._head[_STOP] = max(self._head[_STOP], self._metrics.stop)
        # Not its own line, which `_tell` counts as soon as it is written.
        for worker in range(len(self._lines)):
            if worker != self._rank:
                self._count_line(worker)

    def _count_line(self, worker: int) -> None:
        pushes, samples, loss, staleness, *_ = self._lines[worker].tolist()
        self._lines[worker, :DONE] = 0
        self._metrics.count(worker, int(pushes), int(samples), loss, int(staleness))

    def report(self, accuracy: float, loss: float) -> None:
        """Counts an evaluation: worker 0's at once, others' at the end."""
        if self._leads:
            self._metrics.report(accuracy, loss)
        else:
            self._reports.append((accuracy, loss))

    def finish(self, waited_s: float) -> None:
        computed = time.perf_counter() - self._began - waited_s
        # Others may still train: the centre passes through here until all are done, and once more, then the final one.
        self._end(waited_s, computed)
        self.version, self.samples = self._exchanges, self._total
        if self._leads:
            self._metrics.progress(self.samples, self.version, self._lr)
            for worker, line in enumerate(self._lines.tolist()):
                self._metrics.ended(worker, line[_WAITED], line[_COMPUTED])
        self._ring.meet()
        everyone = gather(self._workers, {"reports": self._reports})
        if self._leads:
            for accuracy, loss in (evaluation for each in everyone for evaluation in each["reports"]):
                self._metrics.report(accuracy, loss)
        self.bytes_sent, self.bytes_received = self._ring.bytes_sent, self._ring.bytes_received
        self._ring.close()

    def _end(self, waited_s: float, computed_s: float) -> None:
        """Hands the centre on until all have the final one. Blocks."""
        while not self._hand_on(waited_s, computed_s):
            pass

    def _hand_on(self, waited_s: float, computed_s: float) -> bool:
        """Sends the centre on unchanged; whether this was the last time."""
        self._take()
        np.copyto(self.centre, self._ring.incoming)
        last = int(self._head[LAST])
        if last < 0:
            self._tell()
            self._lines[self._rank, DONE:] = 1, waited_s, computed_s
            if self._lines[self._members, DONE].all():
                self._head[LAST] = self._rank
        ended = bool(self._head[LAST] >= 0)
        if not ended:
            self._ring.expect()
        if self._ring.right not in (last, self._rank):  # they have the final centre, and expect none
            self._ring.send()
            self._ring.wait_sent()
        if self._votes.reached:
            self._votes.on_reached()
        return ended
