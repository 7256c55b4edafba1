"""Data parallelism by all-reduce, as PyTorch's DistributedDataParallel (Li et al., VLDB 2020).

Every worker has all parameters and the optimizer's whole state. A step sums samples * gradient over the workers, in
worker order, divides by the samples, and every worker takes the same optimizer's step with the same bits.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from mpi4py import MPI

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.checkpoint.state import State
from psgd.strategies.buckets import Buckets
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker
from psgd.worker.serverless.lockstep import LockstepWorker

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.metrics.trace.span import Traceable
    from psgd.strategies.surviving_buckets import SurvivingBuckets


def create(workers: int) -> Callable[[RunContext], Worker]:
    """All-reduce of the gradients. `accumulate`, which every strategy has, is done here without another vector."""
    return _worker


def _worker(context: RunContext) -> Worker:
    if context.compression is None:
        return AllreduceWorker(context)
    from psgd.strategies.compressed_allreduce import CompressedAllreduceWorker

    return CompressedAllreduceWorker(context, context.compression)


class AllreduceWorker(LockstepWorker):
    """A worker.

    `grads` is registered memory in which the all-reduce takes place: after `step` it holds no gradient (with
    `accumulate` above 1 it keeps it). With a progress thread on all ranks, buckets are all-reduced while backward still
    computes. The final parameters are the same bits on all workers.

    A checkpoint lies after an optimizer's step; worker 0 saves what all have alike.
    """

    accumulates = True

    def __init__(self, context: RunContext) -> None:
        comm = context.communicator()
        survives = context.mesh.survival is not None
        self._buckets = _buckets(survives)(comm, context.params, context.accumulate)
        super().__init__(context, comm, self._buckets.grads, together=True)
        self._votes.algorithms = {"Allreduce": comm.algorithm("Allreduce", context.params.nbytes)}
        self._optimizer = context.optimizer.create(context.params)
        self._factor = context.optimizer.reduction_factor
        self._applied = 0
        self._passes: list[int] = []  # samples of each gradient of this round
        if survives:
            from psgd.worker.serverless.regroup import Regroup  # what few runs need

            self._regroup = Regroup(context.mesh, context.alarm, self)

    def start(self) -> None:
        self._buckets.compile()
        super().start()

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        return self._buckets.overlap(samples)

    def spans(self) -> "list[Traceable]":
        from psgd.metrics.trace.span import Span  # only where a run is traced

        reduces = [Span(self._buckets, name, "all-reduce") for name in ("launch", "wait", "reduce")]
        return [*super().spans(), *reduces, Span(self._optimizer, "take", "apply")]

    def _take_step(self, samples: int, loss: float) -> None:
        complete = self._buckets.add(samples)
        self._rounds.note(samples, loss)
        self._passes.append(samples)
        if complete:
            self._together(lambda: self._reduce(samples))
            self._passes.clear()

    def _round(self, done: bool) -> None:
        self._together(lambda: self._reduce(0, done))
        self._passes.clear()

    def _reduce(self, samples: int, done: bool = False) -> None:
        """Sums over all workers and takes the optimizer's step; `samples` are those of the gradient not added yet."""
        buckets, rounds = self._buckets, self._rounds
        rounds.join()
        total = buckets.complete(samples, lambda began: rounds.exchange(done=done, began=began))
        if buckets.early or total:
            rounds.count_allreduce(buckets.sum.nbytes)
        rounds.count()
        self.stop = rounds.stop
        if total:
            self._optimizer.take(buckets.sum, self._factor * buckets.unit / total, self._applied)
            self.version = self._optimizer.version
            self._applied += total
            buckets.unit = _power_of_two(int(rounds.samples.max()))
            if self._rounds.counts:
                self._metrics.progress(self._applied, self.version, self._optimizer.lr)
        self._votes.decide(rounds.request, self.version)

    def put_back(self) -> None:
        """What was the gradient is partly a sum by now: all of it is computed again, on the same parameters."""
        super().put_back()
        assert self._regroup is not None
        for before, samples in zip(reversed(range(len(self._passes))), self._passes, strict=True):
            if samples:
                self._regroup.hand_over.compute_again(before)
            self._buckets.add(samples)

    def revoke(self) -> None:
        super().revoke()
        self._regrouped.settle()

    @property
    def _regrouped(self) -> "SurvivingBuckets":
        return cast("SurvivingBuckets", self._buckets)

    def rebuild(self, comm: "Communicator", members: list[int]) -> None:
        super().rebuild(comm, members)
        self._regrouped.regroup(comm)

    def share(self, comm: MPI.Intracomm, root: int, takes: bool) -> None:
        mine = [self.params, *self._optimizer.arrays.values()]
        theirs = [np.empty_like(array) for array in mine] if takes else mine  # `root` may die before all has come
        for array in theirs:
            comm.Bcast(array, root)
        facts = np.array([self._optimizer.version, self._applied, self._buckets.unit], np.int64)
        comm.Bcast(facts, root)
        super().share(comm, root, takes)
        for array, new in zip(mine, theirs, strict=True):
            array[:] = new
        self.version, self._applied, self._buckets.unit = facts.tolist()
        self._optimizer.version = self.version
        if takes:
            self._metrics.progress(self._applied, self.version, self._optimizer.lr)

    def _free(self) -> None:
        self._buckets.free()

    def _kept(self) -> list[Item]:
        """Any number of workers resumes exactly."""
        return [
            Arrays({"params": self.params} | self._optimizer.arrays, Combine.ALIKE),
            Fact("version", self),
            Fact("samples", self, "_applied"),
            Fact("unit", self._buckets, default=1),
            *self._optimizer.skips(),
            self._votes,
        ]

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        self._rounds.version = self._optimizer.version = self.version
        return []


def _buckets(survives: bool) -> type[Buckets]:
    if not survives:
        return Buckets
    from psgd.strategies.surviving_buckets import SurvivingBuckets  # what few runs need

    return SurvivingBuckets


def _power_of_two(samples: int) -> int:
    """The largest power of two that divides it."""
    return samples & -samples
