"""Decentralized SGD: each worker applies its updates and everyone else's, as they come (Strom, Interspeech 2015)."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from psgd.checkpoint import restore
from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.checkpoint.state import State
from psgd.metrics.trace.span import Span, Traceable
from psgd.strategies.decentralized.flood import (
    APPLIED,
    KIND,
    ORIGIN,
    SAMPLES,
    STOP,
    VALUE,
    VALUE2,
    Flood,
    FloodKind,
    Message,
)
from psgd.strategies.decentralized.flood_update import Updates
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_barrier import AbandonedError
from psgd.worker.serverless.free_running import FreeRunningWorker

WHOLE_AHEAD = 4
"""The window where updates are sent whole, which take much memory."""


class FloodWorker(FreeRunningWorker):
    """A worker.

    A step takes the worker's own update, sends it, and adds all that has arrived meanwhile; the sender adds what others
    will add, not what it meant. No two workers need to have the same parameters at any moment, but each adds every
    update once, and each worker's in their order. An update that is not finite is left out by all.

    A worker that is `window` updates ahead of what some other is known to have applied waits in `step`, and applies
    what comes. So at most `window` messages of each worker are under way or in memory anywhere.

    At the end all have added all updates, and differ by rounding only; all leave with worker 0's bits. What residuals
    hold then is not sent. A stop reaches the others with worker 0's next message.

    At a checkpoint all have added all updates that were made before it; each saves its own parameters.

    Attributes:
        version: updates in `params`, of all workers.
        applied: int64 updates of each worker that were applied here, those that were left out too.
        updates: the codec, and what is made of gradients.
        disagreement: largest difference of an element between a worker and worker 0 before all took worker 0's, known
            after `finish`.
    """

    def __init__(self, context: RunContext, links: list[list[int]], window: int) -> None:
        self.updates = Updates(context)
        super().__init__(context, context.params, "decentralized", words=1)
        self.disagreement = 0.0
        self._window = window
        self._rank, size = self._workers.rank, self._workers.size
        self._leader = 0  # whose metrics are filled
        self._private = self._workers.Dup()
        self._flood = Flood(self._private, links, self.updates.room, self._deliver)
        self.applied = np.zeros(size, np.int64)
        self._published = np.zeros(size, np.int64)  # of them, what others know
        self._lag = np.zeros(size, np.int64)
        self._owes = False  # a whole update has arrived, which its origin should soon know
        self._theirs = [0] * size  # updates of this worker that each has applied
        self._theirs[self._rank] = 1 << 62
        self._done = self._mine = 0
        self._members, self._living = list(range(size)), size
        self._limit = window

    def start(self) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, np.zeros(1), MPI.MAX)  # compiles now what the end needs
        self._flood.open()
        self._start_together()

    def _take_step(self, samples: int, loss: float) -> None:
        """Waits only where this worker is `window` updates ahead."""
        self._liveness.check()
        with self._liveness.guard():
            whole = samples > 0 and self._push(samples, loss)
            self._limit = min(self._window, WHOLE_AHEAD) if whole else self._window
            self._waiter.soon(self._may_go_on)
        self._meet(self._mine)
        if self._rank == self._leader:
            self.stop = self._metrics.stop
        self.stop = self.stop or self.checkpoint.stopping

    def spans(self) -> list[Traceable]:
        return [Span(self, "_push", "push"), Span(self._waiter, "soon", "wait"), Span(self.updates, "add", "apply")]

    def _may_go_on(self) -> bool:
        self._take()
        return self._mine - min(self._theirs) < self._limit

    def _checkpoint(self) -> None:
        """Applies all updates that anybody has made, as do the others before anybody continues."""
        members = self._members
        made = self._barrier.enter(self._mine, self._taken, words=(self._mine,))[:, 0]

        def all_applied() -> bool:
            self._take()
            if self._members is not members:  # all have met: others may have gone on
                raise AbandonedError
            return bool((self.applied[members] == made).all())

        with self._liveness.guard():
            self._waiter.soon(all_applied)
        self._barrier.leave()

    def _taken(self) -> bool:
        self._take()
        return True

    def _kept(self) -> list[Item]:
        mean = "the workers' own parameters: all start from the mean"
        return [
            Fact("version", self),
            Fact("samples", self.updates),
            Fact("made", self.updates, default=0),
            Arrays({"params": self.params}, Combine.WEIGHTS, found=mean),
            Arrays({"applied": self.applied}, Combine.FRESH),
            *self.updates.kept(),
            self._votes,
        ]

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        """With another number of workers all count updates from 0 on."""
        restore.check_counts("applied", self.applied)
        self._published[:] = self.applied
        self._mine = int(self.applied[self._rank])
        self._theirs = [self._mine if k != self._rank else theirs for k, theirs in enumerate(self._theirs)]
        return []

    def _push(self, samples: int, loss: float) -> bool:
        """Makes an update, sends it and takes it; returns whether it was whole."""
        updates, message = self.updates, self._flood.compose()
        whole = updates.whole
        length = updates.make(self.grads, message.payload, whole)
        self._mine += 1
        self._tell(message, FloodKind.WHOLE if whole else FloodKind.UPDATE, samples, loss, length=length)
        self._apply(message)
        return whole

    def _tell(
        self, message: Message, kind: int, samples: int = 0, value: float = 0.0, value2: float = 0.0, length: int = 0
    ) -> None:
        """Sends a message, with what this worker has applied."""
        words, stop = message.words, self._rank == self._leader and self._metrics.stop
        words[SAMPLES], words[STOP] = samples, stop
        message.values[VALUE], message.values[VALUE2] = value, value2
        words[APPLIED:] = self._published[:] = self.applied
        self._owes = False
        self._flood.send(message, kind, length)

    def _take(self) -> None:
        """Applies what has arrived, and says so where its origins may wait for that."""
        self._flood.poll()
        np.subtract(self.applied, self._published, out=self._lag)
        self._lag[self._rank] = 0
        if self._owes or 2 * int(self._lag.max()) >= self._window:
            self._tell(self._flood.compose(), FloodKind.APPLIED)

    def _deliver(self, message: Message) -> None:
        """Another worker's message, new."""
        words = message.words
        origin, kind = int(words[ORIGIN]), int(words[KIND])
        self._theirs[origin] = int(words[APPLIED + self._rank])
        self.stop = self.stop or (origin == self._leader and bool(words[STOP]))
        if kind in (FloodKind.UPDATE, FloodKind.WHOLE):
            self._owes = self._owes or kind == FloodKind.WHOLE
            self._apply(message)
        elif kind == FloodKind.DONE:
            self._done += 1
        if self._rank == self._leader and kind == FloodKind.DONE:
            self._metrics.ended(origin, *message.values[VALUE:APPLIED].tolist())
        elif self._rank == self._leader and kind == FloodKind.REPORT:
            self._metrics.report(*message.values[VALUE:APPLIED].tolist())

    def _apply(self, message: Message) -> None:
        """Adds an update, its own or another's."""
        origin, samples, length = int(message.words[ORIGIN]), int(message.words[SAMPLES]), message.length
        if length:
            self.updates.add(message.payload[:length], int(message.words[KIND]) == FloodKind.WHOLE, samples)
            self.version += 1
        if self._rank == self._leader:
            if length:
                np.subtract(self.applied, message.words[APPLIED:], out=self._lag)
                stale = int(np.maximum(self._lag, 0, out=self._lag).sum())
                self._metrics.count(origin, 1, samples, samples * float(message.values[VALUE]), stale)
                self._metrics.progress(self.updates.samples, self.version, self.updates.lr)
            else:
                self._metrics.dropped[origin] += 1
        self.applied[origin] += 1

    def report(self, accuracy: float, loss: float) -> None:
        if self._rank == self._leader:
            self._metrics.report(accuracy, loss)
        else:
            self._tell(self._flood.compose(), FloodKind.REPORT, 0, accuracy, loss)

    def finish(self) -> None:
        with self._liveness.guard():
            self._end()
            self._flood.leave()
            self._waiter.soon(self._all_left)
        self.bytes_sent, self.bytes_received = self._flood.bytes_sent, self._flood.bytes_received
        self._flood.close()
        self._take_one()
        self._close([self._private])

    def _end(self) -> None:
        """Waits until all have applied all. Blocks."""
        self._say_done()
        self._waiter.until(self._all_done)

    def _say_done(self) -> None:
        seconds = self.waited_s, self._computed_s
        self._tell(self._flood.compose(), FloodKind.DONE, 0, *seconds)
        self._done += 1
        if self._rank == self._leader:
            self._metrics.ended(self._rank, *seconds)

    def _all_done(self) -> bool:
        self._take()
        self._meet_if_called()
        return self._done == self._living

    def _all_left(self) -> bool:
        self._flood.poll()
        return self._flood.ended

    def _take_one(self) -> None:
        """Gives all worker 0's parameters, and measures how far they were from them."""
        own = self.params.copy()
        self._comm.Bcast(self.params, 0)
        self.disagreement = self._largest_difference(own)
