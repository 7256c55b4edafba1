"""EASGD's synchronous order: all workers exchange together, and each has the same centre.

xc <- xc + sum a (x_i - xc): the displacements are summed by an all-reduce, so the centre has the same bits everywhere
and a run repeats. No displacement comes from a worker that is done.
"""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.kernels import elastic
from psgd.runtime.device_vectors import registered
from psgd.strategies.easgd.exchange_order import ExchangeOrder
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.status_rounds import StatusRounds


class SynchronousOrder(ExchangeOrder):
    """A worker's part. A checkpoint lies after an exchange."""

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int) -> None:
        self._params, self._metrics = context.params, context.metrics
        self._comm = context.communicator()
        self._rounds = StatusRounds(self._comm, context.metrics, votes)
        votes.algorithms = {"Allreduce": self._comm.algorithm("Allreduce", context.params.nbytes)}
        self.displacement: NDArray[np.floating] = registered(self._comm, self._params)
        self.centre = np.empty_like(self._params)
        self._lr = 0.0
        self._votes, self._period = votes, period

    def begin(self, resumed: bool) -> None:
        none = self._params[:0]
        elastic.stretch(none, none, none, 0.0)
        self._comm.Allreduce(MPI.IN_PLACE, self.displacement)  # compiles now, so that no step waits for it
        if resumed:
            self._rounds.begin(self.centre)
        else:
            self._rounds.begin(self._params)
            self.centre[:] = self._params

    def note(self, samples: int, loss: float) -> None:
        self._rounds.note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        self._lr = lr
        elastic.stretch(self.displacement, self._params, self.centre, rate)

    def push(self) -> None:
        self._round(done=False)
        self._move()

    def _round(self, done: bool) -> None:
        total = self._rounds.exchange(done=done)
        self.stop = self._rounds.stop
        self.version = self._rounds.version
        self.samples += total
        if total and self._comm.rank == 0:
            self._metrics.progress(self.samples, self.version, self._lr)
        self._votes.decide(self._rounds.request, self.version * self._period)

    def _move(self) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, self.displacement)
        self._rounds.count_allreduce(self.displacement.nbytes)
        np.add(self.centre, self.displacement, out=self.centre)

    def kept(self) -> list[Item]:
        """All have the same centre; worker 0 saves it."""
        centre = Arrays({"centre": self.centre}, Combine.ALIKE, weights="centre")
        return [centre, Fact("version", self), Fact("samples", self)]

    def after_restore(self, own: bool) -> None:
        self._rounds.version = self.version

    def report(self, accuracy: float, loss: float) -> None:
        self._rounds.report(accuracy, loss)

    def finish(self, waited_s: float) -> None:
        self._rounds.waited_s = waited_s
        while True:
            self._round(done=True)
            if not self._rounds.all_done:
                self.displacement.fill(0)
                self._move()
            if self._votes.reached:
                self._votes.on_reached()
            if self._rounds.all_done:
                break
        self.bytes_sent = self.bytes_received = self._rounds.bytes_sent
        self._rounds.free()
        self._comm.free()
