"""Averaging in pairs: workers train on parameters of their own, and average two by two while they train.

AD-PSGD (Lian, Zhang, Zhang and Liu, ICML 2018). Workers of even rank are active, those of odd rank passive. An active
one i sends its x_i to a passive one j; j, in its next step, answers with its own x_j and moves to the mean; when the
answer has arrived, i moves by as much the other way:

    x_j <- x_j + (x_i - x_j)/2        x_i <- x_i + (x_j - x_i)/2

On the right both x are as they were sent: i may have taken steps since, and keeps them. So each exchange keeps the sum
of all parameters (to rounding). Nobody waits; and as the active ask the passive only, they cannot wait in a circle.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd import collectives
from psgd.checkpoint import restore
from psgd.checkpoint.declared import Arrays, Combine, Fact, Item, OwnFacts
from psgd.checkpoint.state import State
from psgd.collectives.mpi import byte_counts
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.metrics.trace.span import Span, Traceable
from psgd.runtime.agreement import gather
from psgd.runtime.jsonable import JSON, wholes
from psgd.runtime.rng import generator
from psgd.strategies.decentralized.gossip_exchange import LOSS, PUSHES, SAMPLES, STOP, WORDS, Exchanges
from psgd.worker.context import RunContext
from psgd.worker.serverless.free_running import FreeRunningWorker


class GossipWorker(FreeRunningWorker):
    """A worker.

    In its step a worker takes its own, with any rule, then looks: an active one takes the answer to its last exchange
    and begins another, with a random one, drawn the same in all runs; a passive one answers all that have asked. Rate,
    version and stop go by what it knows of the others, which comes with their parameters.

    At the end all exchanges are finished, and all leave with the mean of all, the same bits. At a checkpoint
    all are finished too; each saves its own parameters.

    Attributes:
        version: steps of all workers that this one knows of.
        exchanges: with others, and what is known of them.
        disagreement: largest difference of an element between a worker and the mean at the end; known after `finish`.
    """

    def __init__(self, context: RunContext) -> None:
        if context.compression is not None:
            raise UsageError("compress: peers=pairs averages whole parameters, expected none: or use other peers")
        super().__init__(context, context.params, "decentralized", words=WORDS)
        self.disagreement = 0.0
        self._rank = self._workers.rank
        self._leader = 0  # whose metrics are filled, and who says that all shall stop
        self._optimizer = context.optimizer.create(context.params)
        self._factor = context.optimizer.reduction_factor
        self._members = list(range(self._workers.size))
        self._private = self._workers.Dup()
        self.exchanges = Exchanges(self._private, self.params)
        self._random = generator(0, "decentralized", "pairs", self._rank)
        self._shown = np.zeros_like(self.exchanges.lines)
        self._samples_then = 0  # of all workers, at the newest checkpoint
        self._reports: list[tuple[float, float]] = []

    def start(self) -> None:
        # Compiles now what the end needs.
        self._comm.Allreduce(MPI.IN_PLACE, np.zeros_like(self.params), collectives.MEAN)
        self._comm.Allreduce(MPI.IN_PLACE, np.zeros(1), MPI.MAX)
        self._start_together()

    def _take_step(self, samples: int, loss: float) -> None:
        """Waits for nobody."""
        self._liveness.check()
        lines = self.exchanges.lines
        line = lines[self._rank]
        if samples:
            self._optimizer.take(self.grads, self._factor, float(lines[:, SAMPLES].sum()))
            line[PUSHES] += 1
            line[SAMPLES] += samples
            line[LOSS] += samples * loss
        if self._rank == self._leader:
            line[STOP] = self._metrics.stop
        self._exchange()
        self._meet(self._optimizer.version)
        self.version, self.stop = int(lines[:, PUSHES].sum()), lines[:, STOP].any().item() or self.checkpoint.stopping
        if self._rank == self._leader:
            self._show()

    def _exchange(self) -> None:
        """Takes what has arrived, and begins another exchange where this worker does so."""
        exchanges = self.exchanges
        with self._liveness.guard():
            exchanges.look()
            if exchanges.active and exchanges.idle and exchanges.passive:
                exchanges.ask(exchanges.passive[self._random.integers(len(exchanges.passive))])

    def spans(self) -> list[Traceable]:
        return [Span(self._optimizer, "take", "apply"), Span(self.exchanges, "look", "pull")]

    def _checkpoint(self) -> None:
        """Waits until no exchange is under way; all know each other's lines then."""
        if self.exchanges.active:
            with self._liveness.guard():
                self._waiter.soon(self._idle)
        line, members = self.exchanges.lines[self._rank].tolist(), self._members
        self.exchanges.lines[members] = self._barrier.enter(self._optimizer.version, self._idle, words=line)
        self.version, self._samples_then = self.exchanges.lines[:, (PUSHES, SAMPLES)].sum(0).astype(int).tolist()
        if self._rank == self._leader:
            self._show()
        self._barrier.leave()

    def _kept(self) -> list[Item]:
        mean = "the workers' own parameters: all start from the mean"
        return [
            Fact("version", self),
            Fact("samples", self, "_samples_then"),
            Arrays({"params": self.params}, Combine.WEIGHTS, found=mean),
            Arrays({"lines": self.exchanges.lines}, Combine.FRESH),
            *self._optimizer.kept(),
            OwnFacts(lambda: {"random": _position(self._random)}, self._restore_own),
            self._votes,
        ]

    def _restore_own(self, facts: Mapping[str, JSON]) -> None:
        _set_position(self._random, wholes(facts, "random", 11, most=2**64 - 1))

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        """With another number of workers worker 0 stands for what all have done."""
        lines = self.exchanges.lines
        restore.check_counts("lines", lines[:, (PUSHES, SAMPLES)])
        if own is None:
            lines[0, PUSHES], lines[0, SAMPLES] = self.version, self._samples_then
        lines[:, STOP] = 0
        self._shown[:] = lines
        self.version = int(lines[:, PUSHES].sum())
        return []

    def _show(self) -> None:
        """Worker 0 counts what is new."""
        lines = self.exchanges.lines
        for worker, (pushes, samples, loss, _) in enumerate((lines - self._shown).tolist()):
            if pushes:
                self._metrics.count(worker, int(pushes), int(samples), loss)
        self._shown[:] = lines
        self._metrics.progress(int(lines[:, SAMPLES].sum()), self.version, self._optimizer.lr)

    def report(self, accuracy: float, loss: float) -> None:
        """Worker 0's counts at once, others' at the end."""
        if self._rank == self._leader:
            self._metrics.report(accuracy, loss)
        else:
            self._reports.append((accuracy, loss))

    def finish(self) -> None:
        seconds, everyone = (self.waited_s, self._computed_s), list[Any]()
        with self._liveness.guard():
            self._end()
            exchanges = self.exchanges
            mine = {"line": exchanges.lines[self._rank].tolist(), "seconds": seconds, "reports": self._reports}
            everyone = gather(self._workers, mine)
        if not everyone:
            raise PeerLostError("decentralized: a worker died as the run ended")
        exchanges.lines[self._members] = [each["line"] for each in everyone]
        self.version = int(exchanges.lines[:, PUSHES].sum())
        if self._rank == self._leader:
            self._show()
            for worker, each in zip(self._members, everyone, strict=True):
                self._metrics.ended(worker, *each["seconds"])
                for accuracy, loss in each["reports"]:
                    self._metrics.report(accuracy, loss)
        exchanges.close()
        self._take_mean()
        self._close([self._private])

    def _end(self) -> None:
        """Waits until all are done, and no exchange is under way. Blocks."""
        self._say_done()
        self._waiter.until(self._all_done)

    def _say_done(self) -> None:
        exchanges = self.exchanges
        if exchanges.active:
            self._waiter.soon(self._idle)
            for partner in exchanges.passive if self._rank == self._leader and self.stop else []:
                exchanges.ask(partner)  # its last one may have begun before the stop; all others ask one of these
                self._waiter.soon(self._idle)
        self._all_here = self._private.Ibarrier()  # the active come when they are idle: then no exchange is under way

    def _all_done(self) -> bool:
        return self._answered() and self._all_here.Test()

    def _answered(self) -> bool:
        """The same while it waits for the end, where it may be called to a checkpoint."""
        self._meet_if_called()
        return self._idle()

    def _idle(self) -> bool:
        self.exchanges.look()
        return self.exchanges.idle

    def _take_mean(self) -> None:
        """Gives all the mean of all, and measures how far they were from it."""
        own = self.params.copy()
        self._comm.Allreduce(MPI.IN_PLACE, self.params, collectives.MEAN)
        nbytes = byte_counts.allreduce(self._workers.size, own.nbytes)
        self.bytes_sent = self.exchanges.bytes_sent + nbytes
        self.bytes_received = self.exchanges.bytes_received + nbytes
        self.disagreement = self._largest_difference(own)


def _position(random: np.random.Generator) -> list[int]:
    """Where a generator of `psgd.runtime.rng` stands."""
    state: Any = random.bit_generator.state
    words = (*state["state"]["counter"], *state["buffer"], state["buffer_pos"], state["has_uint32"], state["uinteger"])
    return [int(word) for word in words]


def _set_position(random: np.random.Generator, words: Sequence[int]) -> None:
    """Puts one of the same key there."""
    state: Any = random.bit_generator.state
    state["state"]["counter"][:], state["buffer"][:] = words[:4], words[4:8]
    state["buffer_pos"], state["has_uint32"], state["uinteger"] = words[8:]
    random.bit_generator.state = state
