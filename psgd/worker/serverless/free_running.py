"""Workers without servers that do not keep pace: they meet only for checkpoints and at the end."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.liveness import Liveness
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Waiter
from psgd.worker.base import WorkerBase
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.checkpoint_barrier import CheckpointBarrier
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.reunion import Reunion

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class FreeRunningWorker(WorkerBase):
    """The common part of such a worker. Creating is collective, blocks.

    A strategy writes `_checkpoint`, calls `_meet` at a step's end, and `_meet_if_called` in every wait of its `finish`.
    At a checkpoint all learn so many `words` of each worker. One that goes on without workers that die implements
    `psgd.worker.serverless.reunion.Reunites`, and `_all_done`.
    """

    def __init__(self, context: RunContext, params: Vector, strategy: str, words: int) -> None:
        self._votes = CheckpointVotes()
        self._workers: MPI.Intracomm = context.workers
        super().__init__(params, np.zeros_like(params), self._workers.rank, self._votes)
        self._metrics = context.metrics
        self._began = 0.0
        from psgd.collectives import Communicator

        self._comm = Communicator(self._workers)
        self._reunion: Reunion | None = None
        self._liveness: Any  # `Liveness`, or what stands for it where deaths are no errors
        if context.mesh.survival is None:
            self._liveness = Liveness(self._workers, context.alarm, strategy)
        else:
            self._reunion = Reunion(context.mesh, context.alarm, self)  # type: ignore[arg-type]  # as the strategy says
            self._reunion.hand_over.ends = self.ends  # type: ignore[method-assign]
            self._liveness = self._reunion.liveness
        self._waiter = Waiter.for_node(self._workers, self._liveness.check)
        self._words = words
        self._barrier = self._barrier_of(self._workers)

    def _start_together(self) -> None:
        """Gives all worker 0's parameters, unless they were restored, and starts the clock. Collective, blocks."""
        if not self._resumed:
            self._comm.Bcast(self.params, 0)
        self._comm.Barrier()
        self._metrics.restart()
        self._began = time.perf_counter()

    @property
    def _computed_s(self) -> float:
        """Seconds outside of steps."""
        return time.perf_counter() - self._began - self.waited_s

    def _largest_difference(self, own: Vector) -> float:
        """The largest |own - params| of any element on any worker. Collective, blocks; `own` is used up."""
        np.subtract(own, self.params, out=own)
        most = np.array([np.abs(own, out=own).max(initial=0.0)], np.float64)
        self._comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
        return float(most[0])

    def _meet(self, steps: int) -> None:
        """Makes a checkpoint where this worker wants one, after so many steps of its own, or has been called to one."""
        if self._barrier.due(steps):
            self._save_together()

    def _meet_if_called(self) -> None:
        """The same where this worker waits for the end."""
        if self._barrier.called() and self._save_together():
            self.checkpoint.on_reached()

    def _save_together(self) -> bool:
        """Makes a checkpoint with all; whether nobody has died in it. Blocks."""
        if self._reunion is not None:
            return self._reunion.saves(self._votes, self._checkpoint)
        self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Enters the barrier, brings to its end what is under way, and leaves. Blocks."""
        raise NotImplementedError

    def ends(self) -> bool:
        """Says that this worker's steps are over. Blocks.

        Returns:
            Whether the run is, for all; if not, one has died meanwhile, and there may be more to do.
        """
        assert self._reunion is not None
        return self._reunion.ends(self._say_done, self._all_done, self._waiter)

    def _say_done(self) -> None:
        """Tells the others that this worker's steps are over. Does not block."""
        raise NotImplementedError

    def _all_done(self) -> bool:
        """Whether those of all that live are; called in a wait, and looks for deaths."""
        raise NotImplementedError

    def _barrier_of(self, comm: MPI.Intracomm) -> CheckpointBarrier:
        survives = self._reunion is not None
        return CheckpointBarrier(comm, self._votes, self._liveness, self._waiter, self._words, survives)

    def _rejoin(self, comm: MPI.Intracomm, made: "Communicator") -> None:
        """From now on, the workers are these. Does not communicate."""
        self._workers = comm
        keep_for_ever(self._comm)
        self._comm = made
        self._barrier = self._barrier_of(comm)

    def _close(self, private: Sequence[MPI.Comm] = ()) -> None:
        """Frees what was made here, and communicators of the strategy's own. Collective."""
        self._liveness.close()
        if self._reunion is not None:  # what may have lost ranks is not freed
            return
        for comm in private:
            comm.Free()
        self._comm.free()
