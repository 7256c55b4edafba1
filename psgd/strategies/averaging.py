"""Local SGD: every worker trains by itself, and now and then their parameters are averaged.

Parameter averaging every H steps, weighed by samples (McMahan et al., AISTATS 2017: FedAvg); H = 1 first, as in
post-local SGD (Lin et al., ICLR 2020); an outer optimizer's step along what the workers moved together (Douillard et
al. 2023: DiLoCo).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from psgd.collectives import Communicator


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
        self._work = registered(self._comm, context.params)
        self._old = np.empty_like(context.params) if outer else None
        self._velocity = np.zeros_like(context.params) if outer and outer[1] else None
        self._known = 0  # samples of all workers at the last averaging
        self._own = self._steps = 0  # samples and steps of this worker since
        self._base = 0  # steps of the busiest worker at the last averaging
        self._before: list[Vector] = []  # where a run survives deaths: what a round changes
        self._behind: list[Vector] = []  # and the same when it is complete
        if context.mesh.survival is not None:
            self._before = [np.empty_like(array) for array in self._changed()]
            self._behind = [array.copy() for array in self._changed()]
            self._regroup = Regroup(context.mesh, context.alarm, self)
        none = self._work[:0]
        accumulate.weigh(none, none, 1.0)
        accumulate.add_weighted(none, none, 1.0)

    def start(self) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, self._work)  # compiles now, so that no step waits for it
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
        self._own = self._steps = 0
        if total:
            self._take_average(total)
        for behind, array in zip(self._behind, self._changed() if self._behind else (), strict=True):
            behind[:] = array
        self._votes.decide(self._rounds.request, self._base)

    def _take_average(self, total: int) -> None:
        counts = self._rounds.samples.tolist()
        common = math.gcd(*counts)  # equal batches are summed as they are, and nothing is rounded but sum and quotient
        weight, divisor = counts[self._comm.rank] // common, self.params.dtype.type(total // common)
        self._sum(self.params, weight)
        if self._outer is not None and self._known >= self._local_from:
            self._step_outside(divisor, *self._outer)
        else:
            np.divide(self._work, divisor, out=self.params)
        if self._old is not None:
            self._old[:] = self.params
        for state in self._averaged:
            self._sum(state, weight)
            np.divide(self._work, divisor, out=state)
        self._base += int(self._rounds.pushes.max())
        self.version = self._base
        if self._counts_together:
            self._optimizer.version = self._base
        self._known += total
        if self._rounds.counts:
            self._metrics.progress(self._known, self.version, self._optimizer.lr)

    def _sum(self, values: Vector, weight: int) -> None:
        if weight:
            accumulate.weigh(self._work, values, float(weight))
        else:
            self._work.fill(0)
        self._comm.Allreduce(MPI.IN_PLACE, self._work)
        self._rounds.count_allreduce(self._work.nbytes)

    def _step_outside(self, divisor: np.floating, lr: float, momentum: float) -> None:
        """Nesterov's: delta = old - average; u = momentum u + delta; params = old - lr (delta + momentum u)."""
        assert self._old is not None
        delta = self._work
        np.divide(self._work, divisor, out=self._work)
        np.subtract(self._old, self._work, out=delta)
        if self._velocity is not None:
            np.multiply(self._velocity, self._velocity.dtype.type(momentum), out=self._velocity)
            np.add(self._velocity, delta, out=self._velocity)
            accumulate.add_weighted(delta, self._velocity, momentum)
        self.params[:] = self._old
        accumulate.add_weighted(self.params, delta, -lr)

    def _changed(self) -> list[Vector]:
        """The arrays that a round changes."""
        return [*(array for array in (self.params, self._old, self._velocity) if array is not None), *self._averaged]

    def _counts(self) -> list[int]:
        """The numbers that a round changes."""
        return [self._known, self._base, self.version, self._optimizer.version, self._own, self._steps]

    def _set_counts(self, counts: Sequence[int]) -> None:
        self._known, self._base, self.version, self._optimizer.version, self._own, self._steps = counts

    def keep(self) -> None:
        super().keep()
        self._counted = self._counts()
        for before, array in zip(self._before, self._changed(), strict=True):
            before[:] = array

    def put_back(self) -> None:
        super().put_back()
        self._set_counts(self._counted)
        for before, array in zip(self._before, self._changed(), strict=True):
            array[:] = before

    def rebuild(self, comm: "Communicator", members: list[int]) -> None:
        super().rebuild(comm, members)
        self._work = registered(comm, self.params)

    def share(self, comm: MPI.Intracomm, root: int, takes: bool) -> None:
        for behind in self._behind:
            comm.Bcast(behind, root)
        counts = np.array([self._known, self._base], np.int64)
        comm.Bcast(counts, root)
        super().share(comm, root, takes)
        if takes:
            for behind, array in zip(self._behind, self._changed(), strict=True):
                array[:] = behind
            known, base = counts.tolist()
            self._set_counts([known, base, base, base if self._counts_together else self._optimizer.version, 0, 0])
            self._metrics.progress(known, base, self._optimizer.lr)

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
