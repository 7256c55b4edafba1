"""Data parallelism by all-reduce with updates that a codec compresses.

Each worker encodes its part of a step, -lr n_k/n v_k with its own momentum v_k, and all workers add what all payloads
say, in the same order: replicas keep the same bits. What was left out stays with its worker and is sent later.
"""

import time
from collections.abc import Sequence

import numpy as np

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.checkpoint.state import State
from psgd.collectives.compressed import CompressedAllreduce
from psgd.compression import residuals
from psgd.compression.before_encoding import BeforeEncoding
from psgd.compression.options import Compression
from psgd.metrics.trace.span import Span, Traceable
from psgd.worker.accumulation import GradientSum
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.lockstep import LockstepWorker


class CompressedAllreduceWorker(LockstepWorker):
    """A worker.

    A step in which some worker's gradient is not finite is left out on all workers, and counted as dropped there;
    residuals and momentum stay as they are. What residuals hold at the end is not sent.

    Attributes:
        reduce: the compressed all-reduce; its codec's residual is what this worker has left to send.
    """

    accumulates = True

    def __init__(self, context: RunContext, compression: Compression) -> None:
        size, dtype = context.params.size, context.params.dtype
        comm = context.communicator()
        super().__init__(context, comm, np.zeros(size, dtype), together=True)
        self._compression = compression
        self.reduce = CompressedAllreduce(comm, compression.codec(size, dtype))
        self._before = BeforeEncoding(compression, context.params, context.optimizer, context.mesh.workers)
        into = np.zeros_like(self.grads) if context.accumulate > 1 else self.grads
        self._gradient = GradientSum(into, context.accumulate, divide=False)  # the bits of resumed runs stay
        self._update: Vector = np.zeros(size, dtype)
        self._applied = 0
        self._shares = 1.0  # workers of a resumed run for each that there is now
        self.reduce.compile(self._update)  # before anything is restored: it encodes what is left to send

    def spans(self) -> list[Traceable]:
        return [*super().spans(), Span(self, "_apply", "all-reduce")]

    def _take_step(self, samples: int, loss: float) -> None:
        self._rounds.note(samples, loss)
        if self._gradient.add(self.grads, samples):
            self._round(done=False)

    def _round(self, done: bool) -> None:
        """Takes a step together."""
        gradient, samples = self._gradient.take()
        self._rounds.join()
        began = time.perf_counter()
        finite = self.reduce.fine(gradient)
        if not finite.all():
            self._rounds.forget()
            samples = 0
            if self._comm.rank == 0:
                for worker in np.flatnonzero(~finite).tolist():
                    self._metrics.dropped[worker] += 1
        total = self._rounds.exchange(done=done, began=began)
        self.stop = self._rounds.stop
        if total:
            self._apply(gradient, samples, total)
        self._votes.decide(self._rounds.request, self.version)

    def _apply(self, gradient: Vector, samples: int, total: int) -> None:
        """Sends this worker's part of a step, of `samples` of `total`, and adds everyone's."""
        rate = self._before.begin(self._applied) * samples / total
        if not samples or not self._before(self._update, gradient, self.params, rate):
            self._update.fill(0)  # what is left to send may be sent all the same
        if self._compression.sends_whole(self._applied, self.version + 1):
            self.reduce.dense(self._update, self.params)
        else:
            self.reduce(self._update, self.params)
        self._applied += total
        self.version += 1
        if self._comm.rank == 0:
            self._metrics.progress(self._applied, self.version, self._before.lr)

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        self._shares = len(others) / self._comm.size
        return super().restore(state, others)

    def _kept(self) -> list[Item]:
        """What topk's momentum remembers are shares of the step, which more workers make smaller."""
        return [
            Arrays({"params": self.params}, Combine.ALIKE),
            Fact("version", self),
            Fact("samples", self, "_applied"),
            self._votes,
            *residuals.kept(self.reduce.codec, self._before, self._shares),
        ]

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        self._rounds.version = self.version
        return []

    def _count_bytes(self) -> None:
        self.bytes_sent = self.reduce.bytes_sent + self._rounds.bytes_sent
        self.bytes_received = self.reduce.bytes_received + self._rounds.bytes_sent
