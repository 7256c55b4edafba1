"""EASGD's orders with a shared centre, among workers of which some die: the memory outlives them.

A worker that dies while it has the lock leaves an exchange in part, and the lock is taken from it. What it did after
its last exchange has not reached the centre, and goes to the others.
"""

from collections.abc import Sequence
from functools import partial

from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.node import ranks_of_node
from psgd.kernels.memory import counters
from psgd.runtime.mesh import Mesh
from psgd.strategies.easgd.shared import SharedOrder
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_barrier import CheckpointBarrier
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.reunion import Reunion, TolerantLiveness

_REACHED = counters.WISH  # which no order uses: the samples that had been drawn at the last exchange


class SurvivingSharedOrder(SharedOrder):
    """A worker's part; implements `psgd.worker.serverless.reunion.Reunites`."""

    def _watch(self, context: RunContext) -> TolerantLiveness:
        mesh: Mesh = context.mesh
        self._reunion = Reunion(mesh, context.alarm, self)
        self._reunion.hand_over.ends = self._ends  # type: ignore[method-assign]
        return _Looking(context, self._reunion)

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int, locks: bool) -> None:
        super().__init__(context, votes, period, locks)
        self._barrier = CheckpointBarrier(self._workers, votes, self._liveness, self._waiter, survives=True)

    def begin(self, resumed: bool) -> None:
        lines = self._lines
        lines.put(_REACHED, lines.line(lines.place).samples)
        super().begin(resumed)

    def note(self, samples: int, loss: float) -> None:
        self._reunion.drawn += samples
        super().note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        super().pull(rate, lr)
        lines = self._lines
        lines.put(_REACHED, lines.line(lines.place).samples)

    def _ends(self) -> bool:
        return self._reunion.ends(self._say_done, self._all_done, self._waiter)

    def _end(self) -> None:
        while not self._ends():  # stopped early: what it was left is not to be done
            pass

    def _say_done(self) -> None:
        lines = self._lines
        lines.put(_REACHED, lines.line(lines.place).samples)  # what it did since is not to be done again
        super()._say_done()

    def _save(self, steps: int) -> bool:
        return self._reunion.saves(self._votes, partial(self._checkpoint, steps))

    def facts(self) -> Sequence[int]:
        return ()

    def level(self, comm: MPI.Intracomm, members: list[int], facts: NDArray) -> list[int]:  # type: ignore[type-arg]
        lines = self._lines
        lines.put(counters.DONE, 0)  # there may be more to do
        dead = [worker for worker in self._members if worker not in members]
        if comm.rank == 0:
            self._memory.unlock()
            for worker in dead:
                self._counts.set_back(worker, lines.word(worker, _REACHED))
        comm.Barrier()
        self._dead = dead
        # Not what those that live have drawn since: one that dies before its next exchange has not brought it either.
        return [lines.word(worker, _REACHED) - then for worker, then in enumerate(self._begun)]

    def settle(self, comm: MPI.Intracomm, members: list[int]) -> None:
        self._workers, self._members = comm, members
        self.first = comm.rank == 0
        if self.first and self._kept is None:
            self._kept = self.centre.copy()
        if comm.rank == 0:
            self._counts.lead(self._dead)
        self._barrier = CheckpointBarrier(comm, self._votes, self._liveness, self._waiter, survives=True)


class _Looking(TolerantLiveness):
    """Every wait looks for deaths, that for the lock too: who is dead may have it."""

    def __init__(self, context: RunContext, reunion: Reunion) -> None:
        super().__init__(context.alarm, reunion)
        self.node = ranks_of_node(context.workers)

    def check(self) -> None:
        super().check()
        self._reunion.look()
