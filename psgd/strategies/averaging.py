"""Local SGD: every worker trains by itself, and now and then their parameters are averaged.

Parameter averaging every H steps, weighed by samples (McMahan et al., AISTATS 2017: FedAvg); H = 1 first, as in
post-local SGD (Lin et al., ICLR 2020); an outer optimizer's step along what the workers moved together (Douillard et
al. 2023: DiLoCo).
"""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint.state import State
from psgd.collectives import Communicator
from psgd.kernels import accumulate
from psgd.runtime.device_vectors import registered
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker
from psgd.worker.status_rounds import StatusRounds

Vector = NDArray[np.floating]


def create(
    workers: int, period: int, average_momentum: bool, local_from: float, outer_lr: float, outer_momentum: float
) -> Callable[[RunContext], Worker]:
    """Parameter averaging.

    Args:
        workers: how many there are.
        period: steps of each worker between averagings.
        average_momentum: the rule's state (momentum, Adam's moments) is averaged too; else each worker keeps its own.
        local_from: samples of all workers before which parameters are averaged, plainly, after every step.
        outer_lr: rate of the outer step along what the workers moved together; 1 without momentum is the plain average.
        outer_momentum: factor of the outer step's Nesterov momentum.
    """
    return lambda context: AveragingWorker(context, period, average_momentum, local_from, outer_lr, outer_momentum)


class AveragingWorker(CheckpointVotes):
    """A worker. Implements `Worker`.

    Between averagings `params` are this worker's own and nothing is communicated. A worker whose steps are over takes
    part in the averagings that remain, by the samples that it had since the last. Averaging happens a last time at the
    end, so that all workers leave with the same bits.

    The rate goes by the samples of all workers at the last averaging plus this worker's since then times the workers
    that still train: exact wherever they average, an estimate between.

    `version` is the steps of the busiest worker up to the last averaging, plus this worker's since then; with
    `average_momentum` it is also the step that the rule is told, so that averaged moments go with one count (Adam's).

    A cut lies where workers have just averaged; worker 0 saves what all have alike then.
    """

    def __init__(
        self,
        context: RunContext,
        period: int,
        average_momentum: bool,
        local_from: float,
        outer_lr: float,
        outer_momentum: float,
    ) -> None:
        super().__init__()
        self.params = context.params
        self.grads: Vector = np.zeros_like(context.params)
        self.version = 0
        self.waited_s = 0.0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._comm = Communicator(context.mesh.worker)  # type: ignore[arg-type]
        self._rounds = StatusRounds(self._comm, context.metrics, self)
        self.algorithms = {"Allreduce": self._comm.algorithm("Allreduce", context.params.nbytes)}
        self._stepper = context.optimizer.create(context.params)
        self._metrics, self._factor = context.metrics, context.optimizer.reduction_factor
        self._period, self._local_from = period, local_from
        self._averaged = self._stepper.state if average_momentum else ()
        self._counts_together = average_momentum
        self._outer = (outer_lr, outer_momentum) if (outer_lr, outer_momentum) != (1.0, 0.0) else None
        self._work = registered(self._comm, context.params)
        self._old = np.empty_like(context.params) if self._outer else None
        self._velocity = np.zeros_like(context.params) if outer_momentum else None
        self._known = 0  # samples of all workers at the last averaging
        self._own = self._steps = 0  # samples and steps of this worker since
        self._base = 0  # steps of the busiest worker at the last averaging
        self._resumed = False
        none = self._work[:0]
        accumulate.weigh(none, none, 1.0)
        accumulate.add_weighted(none, none, 1.0)

    def start(self) -> None:
        """See `Worker`."""
        self._comm.Allreduce(MPI.IN_PLACE, self._work)  # compiles now, so that no step waits for it
        self._rounds.begin(self.params)
        if self._resumed:
            for array in self._alike().values():
                self._comm.Bcast(array, 0)
        if self._old is not None:
            self._old[:] = self.params

    def overlap(self, samples: int) -> None:
        """See `Worker`."""

    def step(self, samples: int, loss: float) -> None:
        """See `Worker`. Blocks where parameters are averaged: until all workers that still train have come."""
        began = time.perf_counter()
        self.saving = False
        self._rounds.note(samples, loss)
        if samples:
            self._stepper.take(self.grads, self._factor, self._known + self._own * self._rounds.active)
            self._own += samples
            self.version += 1
        self._steps += 1
        if self._steps >= (self._period if self._known >= self._local_from else 1):
            self._average()
        self.waited_s += time.perf_counter() - began
        self._rounds.waited_s = self.waited_s

    def _average(self, done: bool = False) -> None:
        """Averages by the samples since the last time; without any, all have the same already."""
        total = self._rounds.exchange(done=done)
        self.stop = self._rounds.stop
        self._own = self._steps = 0
        if total:
            self._take_average(total)
        self.agree(self._rounds.wish, self._base)

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
            self._stepper.version = self._base
        self._known += total
        if self._comm.rank == 0:
            self._metrics.progress(self._known, self.version, self._stepper.lr)

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

    def report(self, accuracy: float, loss: float) -> None:
        """See `Worker`."""
        self._rounds.report(accuracy, loss)

    def _alike(self) -> dict[str, Vector]:
        """What all workers have alike after an averaging, but for the parameters."""
        outer = {} if self._velocity is None else {"outer_velocity": self._velocity}
        return outer | (self._stepper.arrays if self._counts_together else {})

    def state(self) -> State:
        """See `Worker`."""
        tensors = {} if self._counts_together else dict(self._stepper.arrays)
        if self._comm.rank == 0:
            tensors |= {"params": self.params} | self._alike()
        facts = {"version": self._base, "samples": self._known, "steps": self._stepper.version}
        return State(tensors, facts | {"active": self._rounds.active} | self.facts())

    def restore(self, state: State | None, others: Sequence[State]) -> list[str]:
        """See `Worker`. Any number of workers goes on exactly where momentum is averaged, as it is by default."""
        saved = keeping.saved(state, others)
        if self._comm.rank == 0:
            first = keeping.first({"params": self.params}, saved)
            keeping.put_back({"params": self.params} | self._alike(), first)
        self._resumed = True
        self.version = self._base = keeping.common(saved, "version")
        self._known = keeping.common(saved, "samples")
        self.resume(saved)
        if state is not None:
            self._rounds.active = int(keeping.fact(state, "active"))
        if self._counts_together:
            self._stepper.version = self._base
        elif state is None:
            return self._stepper.share(others)
        else:
            keeping.put_back(self._stepper.arrays, state)
            self._stepper.version = int(keeping.fact(state, "steps"))
        return []

    def finish(self) -> None:
        """See `Worker`."""
        while not self._rounds.all_done:
            self._average(done=True)
            if self.saving:
                self.on_cut()
        self.bytes_sent = self.bytes_received = self._rounds.bytes_sent
        self._comm.free()
