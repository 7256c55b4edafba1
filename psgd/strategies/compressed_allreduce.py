"""Data parallelism by all-reduce with updates that a codec compresses.

Each worker encodes its part of a step, -lr n_k/n v_k with its own momentum v_k, and all workers add what all payloads
say, in the same order: replicas keep the same bits. What was left out stays with its worker and is sent later.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.checkpoint.state import State
from psgd.collectives.compressed import CompressedAllreduce
from psgd.compression import residuals
from psgd.compression.before_encoding import BeforeEncoding
from psgd.compression.options import Compression
from psgd.compression.rollback import Rollback
from psgd.metrics.trace.span import Span, Traceable
from psgd.worker.accumulation import GradientSum
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.lockstep import LockstepWorker

if TYPE_CHECKING:
    from mpi4py import MPI

    from psgd.collectives import Communicator


class CompressedAllreduceWorker(LockstepWorker):
    """A worker.

    A step in which some worker's gradient is not finite is left out on all workers, and counted as dropped there;
    residuals and momentum stay as they are. What residuals hold at the end is not sent.

    Where a worker dies in a step, what it had left to send is lost. If the step is made again, residuals, thresholds
    and momentum are put back before it. If others have found it complete, all that live have sent their parts of it,
    and theirs are as after it.

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
        self._rollback: Rollback | None = None
        if context.mesh.survival is not None:
            from psgd.worker.serverless.regroup import Regroup  # what few runs need

            self._regroup = Regroup(context.mesh, context.alarm, self)
            self._regroup.hand_over.also_lost = "; what its codec had left to send is lost"
            self._rollback = Rollback([*self.reduce.codec.arrays().values(), self._before.velocity])

    def spans(self) -> list[Traceable]:
        return [*super().spans(), Span(self, "_apply", "all-reduce")]

    def _take_step(self, samples: int, loss: float) -> None:
        self._rounds.note(samples, loss)
        if self._gradient.add(self.grads, samples):
            self._round(done=False)

    def _round(self, done: bool) -> None:
        """Takes a step together."""
        gradient, samples = self._gradient.take()
        self._together(lambda: self._exchange(gradient, samples, done))

    def _exchange(self, gradient: Vector, samples: int, done: bool) -> None:
        rounds = self._rounds
        rounds.join()
        began = time.perf_counter()
        finite = self.reduce.fine(gradient)
        if not finite.all():
            rounds.forget()
            samples = 0
        total = rounds.exchange(done=done, began=began)
        self.stop = rounds.stop
        if total:
            self._apply(gradient, samples, total)
        rounds.count()
        if rounds.counts:
            for place in np.flatnonzero(~finite).tolist():
                self._metrics.dropped[place if self._regroup is None else self._regroup.members[place]] += 1
        self._votes.decide(rounds.request, self.version)

    def _apply(self, gradient: Vector, samples: int, total: int) -> None:
        """Sends this worker's part of a step, of `samples` of `total`, and adds everyone's."""
        if self._rollback is not None:
            self._rollback.keep()
        rate = self._before.begin(self._applied) * samples / total
        if not samples or not self._before(self._update, gradient, self.params, rate):
            self._update.fill(0)  # what is left to send may be sent all the same
        if self._compression.sends_whole(self._applied, self.version + 1):
            self.reduce.dense(self._update, self.params)
        else:
            self.reduce(self._update, self.params)
        self._applied += total
        self.version += 1
        if self._rounds.counts:
            self._metrics.progress(self._applied, self.version, self._before.lr)

    def keep(self) -> None:
        """This and the next three are `psgd.worker.serverless.regroup.Regroups`."""
        super().keep()
        assert self._rollback is not None
        self._rollback.release()

    def put_back(self) -> None:
        super().put_back()
        assert self._rollback is not None
        self._rollback.put_back()

    def rebuild(self, comm: "Communicator", members: list[int]) -> None:
        super().rebuild(comm, members)
        self.reduce = self.reduce.among(comm)

    def share(self, comm: "MPI.Intracomm", root: int, takes: bool) -> None:
        params = np.empty_like(self.params) if takes else self.params  # `root` may die before all has come
        comm.Bcast(params, root)
        facts = np.array([self.version, self._applied], np.int64)
        comm.Bcast(facts, root)
        super().share(comm, root, takes)
        if takes:
            self.params[:] = params
            self.version, self._applied = facts.tolist()
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
