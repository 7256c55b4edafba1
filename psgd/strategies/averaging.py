"""Local SGD: every worker trains by itself, and now and then their parameters are averaged.

Parameter averaging every H steps, weighed by samples (McMahan et al., AISTATS 2017: FedAvg); H = 1 first, as in
post-local SGD (Lin et al., ICLR 2020); an outer optimizer's step along what the workers moved together (Douillard et
al. 2023: DiLoCo).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.checkpoint.state import State
from psgd.kernels import accumulate
from psgd.metrics.trace.span import Span, Traceable
from psgd.runtime.device_vectors import registered
from psgd.worker.context import Alone, RunContext
from psgd.worker.interface import Vector, Worker
from psgd.worker.serverless.lockstep import LockstepWorker
from psgd.worker.serverless.regroup import Regroup


def create(
    workers: int, period: int, average_momentum: bool, local_from: float, outer_lr: float, outer_momentum: float
) -> Callable[[RunContext], Worker]:
    """Parameter averaging.

    Args:
        workers: how many there are. One alone has something to do only where there is an outer step.
        period: steps of each worker between averagings.
        average_momentum: the rule's state (momentum, Adam's moments) is averaged too; else each worker keeps its own.
        local_from: samples of all workers before which parameters are averaged, plainly, after every step.
        outer_lr: rate of the outer step along what the workers moved together; 1 without momentum is the plain average.
        outer_momentum: factor of the outer step's Nesterov momentum.
    """
    outer = (outer_lr, outer_momentum) if (outer_lr, outer_momentum) != (1.0, 0.0) else None
    make = partial(
        AveragingWorker, period=period, average_momentum=average_momentum, local_from=local_from, outer=outer
    )
    return Alone(make) if outer else make


class AveragingWorker(LockstepWorker):
    """A worker.

    Between averagings `params` are this worker's own and nothing is communicated. A worker whose steps are over takes
    part in the averagings that remain, by the samples that it had since the last. Averaging happens a last time at the
    end, so that all workers leave with the same bits.

    The rate goes by the samples of all workers at the last averaging plus this worker's since then times the workers
    that still train: exact wherever they average, an estimate between.

    `version` is the steps of the busiest worker up to the last averaging, plus this worker's since then; with
    `average_momentum` it is also the step that the rule counts, so that averaged moments go with one count (Adam's).

    A checkpoint lies where workers have just averaged; worker 0 saves what all have alike then.
    """

    def __init__(
        self,
        context: RunContext,
        period: int,
        average_momentum: bool,
        local_from: float,
        outer: tuple[float, float] | None,
    ) -> None:
        comm = context.communicator()
        super().__init__(context, comm, np.zeros_like(context.params))
        self._votes.algorithms = {"Allreduce": comm.algorithm("Allreduce", context.params.nbytes)}
        self._optimizer = context.optimizer.create(context.params)
        self._factor = context.optimizer.reduction_factor
        self._period, self._local_from = period, local_from
        self._averaged = self._optimizer.state if average_momentum else ()
        self._counts_together = average_momentum
        self._outer = outer  # rate and momentum of the outer step
        # Where workers may die, each averaged array has a sum of its own, from which those that are behind catch up.
        survives = context.mesh.survival is not None
        apart = 1 + len(self._averaged) if survives else 1
        self._sums = [registered(self._comm, context.params) for _ in range(apart)]
        self._old = np.empty_like(context.params) if outer else None
        self._velocity = np.zeros_like(context.params) if outer and outer[1] else None
        self._known = 0  # samples of all workers at the last averaging
        self._own = self._steps = 0  # samples and steps of this worker since
        self._base = 0  # steps of the busiest worker at the last averaging
        self._divisor = 0  # of the sums at the last averaging; 0 before the first
        if survives:
            self._regroup = Regroup(context.mesh, context.alarm, self)
        none = self._sums[0][:0]
        accumulate.weigh(none, none, 1.0)
        accumulate.add_weighted(none, none, 1.0)

    def start(self) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, self._sums[0])  # compiles now, so that no step waits for it
        super().start()
        if self._old is not None:
            self._old[:] = self.params

    def spans(self) -> list[Traceable]:
        return [
            *super().spans(),
            Span(self._optimizer, "take", "apply"),
            Span(self, "_take_average", "all-reduce"),
        ]

    def _take_step(self, samples: int, loss: float) -> None:
        """Blocks where parameters are averaged: until all workers that still train have arrived."""
        self._rounds.note(samples, loss)
        if samples:
            self._optimizer.take(self.grads, self._factor, self._known + self._own * self._rounds.active)
            self._own += samples
            self.version += 1
        self._steps += 1
        if self._steps >= (self._period if self._known >= self._local_from else 1):
            self._round(done=False)

    def _round(self, done: bool) -> None:
        """Averages by the samples since the last time; without any, all have the same already."""
        self._together(lambda: self._average(done))

    def _average(self, done: bool) -> None:
        total = self._rounds.exchange(done=done)
        self.stop = self._rounds.stop
        if total:
            self._take_average(total)
        else:
            self._rounds.count()
        self._own = self._steps = 0
        self._votes.decide(self._rounds.request, self._base)

    def _take_average(self, total: int) -> None:
        counts = self._rounds.samples.tolist()
        common = math.gcd(*counts)  # equal batches are summed as they are, and nothing is rounded but sum and quotient
        weight = counts[self._comm.rank] // common
        sums = self._summed(weight)
        first = next(sums)
        self._divisor = total // common
        divisor = self.params.dtype.type(self._divisor)
        self._rounds.count()
        if self._outer is not None and self._known >= self._local_from:
            self._step_outside(divisor, *self._outer)
        else:
            np.divide(first, divisor, out=self.params)
        if self._old is not None:
            self._old[:] = self.params
        for state, summed in zip(self._averaged, sums, strict=True):
            np.divide(summed, divisor, out=state)
        self._base += int(self._rounds.pushes.max())
        self._known += total
        self._begin_anew()
        if self._rounds.counts:
            self._metrics.progress(self._known, self.version, self._optimizer.lr)

    def _begin_anew(self) -> None:
        """Counts from the last averaging."""
        self.version = self._base
        self._own = self._steps = 0
        if self._counts_together:
            self._optimizer.version = self._base

    def _summed(self, weight: int) -> Iterator[Vector]:
        """The sums of all that is averaged, in turn; where workers may die, nothing is given before all are there."""
        arrays = (self.params, *self._averaged)
        if self._regroup is not None:
            yield from [self._sum(values, weight, into) for values, into in zip(arrays, self._sums, strict=True)]
        else:
            for values in arrays:
                yield self._sum(values, weight, self._sums[0])

    def _sum(self, values: Vector, weight: int, into: Vector) -> Vector:
        if weight:
            accumulate.weigh(into, values, float(weight))
        else:
            into.fill(0)
        self._comm.Allreduce(MPI.IN_PLACE, into)
        self._rounds.count_allreduce(into.nbytes)
        return into

    def _step_outside(self, divisor: np.floating, lr: float, momentum: float) -> None:
        """Nesterov's: delta = old - average; u = momentum u + delta; params = old - lr (delta + momentum u)."""
        assert self._old is not None
        delta = self._sums[0]
        np.divide(delta, divisor, out=delta)
        np.subtract(self._old, delta, out=delta)
        if self._velocity is not None:
            np.multiply(self._velocity, self._velocity.dtype.type(momentum), out=self._velocity)
            np.add(self._velocity, delta, out=self._velocity)
            accumulate.add_weighted(delta, self._velocity, momentum)
        self.params[:] = self._old
        accumulate.add_weighted(self.params, delta, -lr)

    def _newest(self) -> list[Vector]:
        """What the last averaging has left: all of `_take` follows from it, though steps have been taken since."""
        moved = [array for array in (self._old, self._velocity) if array is not None] or self._sums[:1]
        return moved + self._sums[1:]

    def _take(self, newest: Sequence[Vector], divisor: int) -> None:
        """This worker is behind the last averaging too, of which others have left that."""
        if self._old is None:
            np.divide(newest[0], self.params.dtype.type(divisor), out=self.params)
        else:
            self.params[:] = self._old[:] = newest[0]
        if self._velocity is not None:
            self._velocity[:] = newest[1]
        sums = newest[len(newest) - len(self._averaged) :]
        for state, total in zip(self._averaged, sums, strict=True):
            np.divide(total, state.dtype.type(divisor), out=state)

    def share(self, comm: MPI.Intracomm, root: int, takes: bool) -> None:
        mine = self._newest()
        theirs = [np.empty_like(array) for array in mine] if takes else mine  # `root` may die before all has come
        for array in theirs:
            comm.Bcast(array, root)
        facts = np.array([self._known, self._base, self._divisor], np.int64)
        comm.Bcast(facts, root)
        super().share(comm, root, takes)
        if takes:
            self._known, self._base, self._divisor = facts.tolist()
            if self._divisor:
                self._take(theirs, self._divisor)
            self._begin_anew()
            self._metrics.progress(self._known, self.version, self._optimizer.lr)

    def _kept(self) -> list[Item]:
        """Any number of workers resumes exactly where momentum is averaged, as it is by default."""
        outer = {} if self._velocity is None else {"outer_velocity": self._velocity}
        return [
            Arrays({"params": self.params} | outer, Combine.ALIKE),
            *self._optimizer.kept(alike=self._counts_together),
            Fact("version", self, "_base"),
            Fact("samples", self, "_known"),
            Fact("active", self._rounds, combine=Combine.FRESH),
            self._votes,
        ]

    def _after_restore(self, own: State | None, others: Sequence[State]) -> list[str]:
        self.version = self._base
        return []
