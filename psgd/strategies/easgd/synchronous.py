"""EASGD's synchronous order: all workers exchange together, and each has the same centre.

xc <- xc + sum a (x_i - xc): the displacements are summed by an all-reduce, so the centre has the same bits everywhere
and a run repeats. No displacement comes from a worker that is done.
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint import restore as keeping
from psgd.checkpoint import vectors
from psgd.checkpoint.state import State
from psgd.collectives import Communicator
from psgd.kernels import elastic
from psgd.runtime.device_vectors import registered
from psgd.worker.checkpoint_votes import CheckpointVotes
from psgd.worker.context import RunContext
from psgd.worker.status_rounds import StatusRounds


class SynchronousOrder:
    """A worker's part. Implements `psgd.strategies.easgd.easgd.ExchangeOrder`. A cut lies after an exchange."""

    def __init__(self, context: RunContext, cuts: CheckpointVotes, period: int) -> None:
        self.samples = self.version = 0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._params, self._metrics = context.params, context.metrics
        self._comm = Communicator(context.mesh.worker)  # type: ignore[arg-type]
        self._rounds = StatusRounds(self._comm, context.metrics, cuts)
        cuts.algorithms = {"Allreduce": self._comm.algorithm("Allreduce", context.params.nbytes)}
        self.displacement: NDArray[np.floating] = registered(self._comm, self._params)
        self.centre = np.empty_like(self._params)
        self._lr = 0.0
        self._cuts, self._period, self._resumed = cuts, period, False

    def begin(self) -> None:
        """See `ExchangeOrder`."""
        none = self._params[:0]
        elastic.stretch(none, none, none, 0.0)
        self._comm.Allreduce(MPI.IN_PLACE, self.displacement)  # compiles now, so that no step waits for it
        if self._resumed:
            self._rounds.begin(self.centre)
        else:
            self._rounds.begin(self._params)
            self.centre[:] = self._params

    def note(self, samples: int, loss: float) -> None:
        """See `ExchangeOrder`."""
        self._rounds.note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        """See `ExchangeOrder`."""
        self._lr = lr
        elastic.stretch(self.displacement, self._params, self.centre, rate)

    def push(self) -> None:
        """See `ExchangeOrder`."""
        self._round(done=False)
        self._move()

    def _round(self, done: bool) -> None:
        total = self._rounds.exchange(done=done)
        self.stop = self._rounds.stop
        self.version = self._rounds.version
        self.samples += total
        if total and self._comm.rank == 0:
            self._metrics.progress(self.samples, self.version, self._lr)
        self._cuts.agree(self._rounds.wish, self.version * self._period)

    def _move(self) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, self.displacement)
        self._rounds.count_allreduce(self.displacement.nbytes)
        np.add(self.centre, self.displacement, out=self.centre)

    def meet(self, steps: int) -> None:
        """See `ExchangeOrder`."""

    def state(self) -> State:
        """See `ExchangeOrder`. All have the same centre; worker 0 saves it."""
        facts = {"version": self.version, "samples": self.samples}
        if self._comm.rank > 0:
            return State({}, facts)
        return State({"centre": self.centre}, {"weights": "centre"} | facts)

    def restore(self, state: State | None, others: Sequence[State]) -> None:
        """See `ExchangeOrder`."""
        saved = keeping.saved(state, others)
        if self._comm.rank == 0:
            self.centre[:] = vectors.weights(saved)
        self._resumed = True
        self.version = self._rounds.version = keeping.common(saved, "version")
        self.samples = keeping.common(saved, "samples")
        self._cuts.resume(saved)

    def report(self, accuracy: float, loss: float) -> None:
        """See `ExchangeOrder`."""
        self._rounds.report(accuracy, loss)

    def finish(self, waited_s: float) -> None:
        """See `ExchangeOrder`."""
        self._rounds.waited_s = waited_s
        while True:
            self._round(done=True)
            if not self._rounds.all_done:
                self.displacement.fill(0)
                self._move()
            if self._cuts.saving:
                self._cuts.on_cut()
            if self._rounds.all_done:
                break
        self.bytes_sent = self.bytes_received = self._rounds.bytes_sent
        self._comm.free()
