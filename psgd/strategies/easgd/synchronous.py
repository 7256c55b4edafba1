"""EASGD's synchronous order: all workers exchange together, and each has the same centre.

xc <- xc + sum a (x_i - xc): the displacements are summed by an all-reduce, so the centre has the same bits everywhere
and a run repeats. No displacement comes from a worker that is done.
"""

import time
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint.declared import Arrays, Combine, Fact, Item
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.kernels import elastic
from psgd.runtime.device_vectors import registered
from psgd.strategies.easgd.exchange_order import ExchangeOrder
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.regroup import Regroup
from psgd.worker.serverless.status_rounds import StatusRounds

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class SynchronousOrder(ExchangeOrder):
    """A worker's part. A checkpoint lies after an exchange.

    Where a worker dies in an exchange, those that live make it again, or take the centre of one that has it behind it.
    What the dead one did after its last exchange has not reached the centre, and goes to the others.
    """

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int) -> None:
        self._params, self._metrics = context.params, context.metrics
        self._comm = context.communicator()
        survives = context.mesh.survival is not None
        self._rounds = StatusRounds(self._comm, context.metrics, votes, everyone=survives)
        votes.algorithms = {"Allreduce": self._comm.algorithm("Allreduce", context.params.nbytes)}
        self.displacement: NDArray[np.floating] = registered(self._comm, self._params)
        self.centre = np.empty_like(self._params)
        self._lr = 0.0
        self._votes, self._period = votes, period
        self._regroup: Regroup | None = None
        if context.mesh.survival is not None:
            self._before = np.empty_like(self._params)  # the displacement, which the sum overwrites
            self._counted = 0, 0  # samples and version before the exchange
            self._regroup = Regroup(context.mesh, context.alarm, self)
            self._regroup.hand_over.ends = self.ends

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
        if self._regroup is not None:
            self._regroup.drawn += samples
        self._rounds.note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        self._lr = lr
        elastic.stretch(self.displacement, self._params, self.centre, rate)

    def push(self) -> None:
        start = time.perf_counter()
        self._together(done=False)
        self._rounds.waited_s += time.perf_counter() - start

    def _together(self, done: bool) -> None:
        """Makes an exchange, again where a worker has died in it; `done`: this worker has no more steps."""
        if done:
            self.displacement.fill(0)
        if self._regroup is None:
            self._exchange(done)
        else:
            rounds = self._regroup
            rounds.run(lambda: self._exchange(done), lambda: self._rounds.samples, lambda: self._rounds.all_done)

    def _exchange(self, done: bool) -> None:
        rounds = self._rounds
        total = rounds.exchange(done=done)
        self.stop = rounds.stop
        self.version = rounds.version
        self.samples += total
        if not rounds.all_done:
            self._comm.Allreduce(MPI.IN_PLACE, self.displacement)
            rounds.count_allreduce(self.displacement.nbytes)
            np.add(self.centre, self.displacement, out=self.centre)
        rounds.count()
        if total and rounds.counts:
            self._metrics.progress(self.samples, self.version, self._lr)
        self._votes.decide(rounds.request, self.version * self._period)

    def ends(self) -> bool:
        """Says in exchanges that this worker's steps are over. Collective, blocks.

        Returns:
            Whether the run is, for all; if not, one has died in such an exchange, and there may be more to do.
        """
        assert self._regroup is not None
        return self._regroup.ends(self._end, lambda: self._rounds)

    def _end(self) -> None:
        self._together(done=True)
        if self._votes.reached:
            self._votes.on_reached()

    def keep(self) -> None:
        """This and the next four are `psgd.worker.serverless.regroup.Regroups`."""
        self._rounds.keep()
        self._before[:] = self.displacement
        self._counted = self.samples, self.version

    def put_back(self) -> None:
        self._rounds.put_back()
        self.displacement[:] = self._before
        self.samples, self.version = self._counted

    def revoke(self) -> None:
        self._comm.revoke()

    def rebuild(self, comm: "Communicator", members: list[int]) -> None:
        comm.adopt(self._comm)
        keep_for_ever(self._comm)
        self.first = comm.rank == 0
        self._comm, self._rounds = comm, self._rounds.regrouped(comm, members)

    def share(self, comm: MPI.Intracomm, root: int, takes: bool) -> None:
        rounds = self._rounds
        centre = np.empty_like(self.centre) if takes else self.centre  # `root` may die before all of it has come
        comm.Bcast(centre, root)
        words = np.array([self.samples, rounds.version, rounds.active, rounds.stop, rounds.all_done], np.int64)
        votes = np.array(self._votes.newest)
        comm.Bcast(words, root)
        comm.Bcast(votes, root)
        if takes:
            self.centre[:] = centre
            self.samples, self.version, *rest = words.tolist()
            rounds.take(self.version, *rest)
            self._votes.catch_up(votes.tolist())
            self.stop = rounds.stop
            self._metrics.progress(self.samples, self.version, self._lr)

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
        while not self._rounds.all_done:
            self._end()
        self.bytes_sent = self.bytes_received = self._rounds.bytes_sent
        if self._regroup is not None:  # what has lost ranks is not freed
            return
        self._rounds.free()
        self._comm.free()
