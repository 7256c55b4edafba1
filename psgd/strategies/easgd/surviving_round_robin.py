"""EASGD's round-robin order among workers of which some die: the turn passes over the dead.

What a dead worker did after its last exchange that the centre still has goes to the others: of each worker the head
says how many samples it had drawn then. There are no checkpoints meanwhile.
"""

import time

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.runtime.mesh import Mesh
from psgd.strategies.easgd.round_robin import DONE, LAST, STALENESS, RoundRobinOrder
from psgd.strategies.easgd.surviving_ring import SurvivingRing
from psgd.worker.context import RunContext
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.reunion import Reunion

_PUSHES, _SAMPLES, _LOSS, _SUMS = range(4)


class SurvivingRoundRobinOrder(RoundRobinOrder):
    """A worker's part; implements `psgd.worker.serverless.reunion.Reunites`."""

    _ring: SurvivingRing

    def __init__(self, context: RunContext, votes: CheckpointVotes, period: int) -> None:
        mesh: Mesh = context.mesh
        self._reunion = Reunion(mesh, context.alarm, self)
        self._reunion.hand_over.ends = self._ends  # type: ignore[method-assign]
        super().__init__(context, votes, period)
        self._seconds: tuple[float, float] | None = None  # waited, computed: of a worker that is done for good

    def _made_ring(self, context: RunContext, words: int) -> SurvivingRing:
        sums = _SUMS * context.workers.size
        ring = SurvivingRing(context, words + sums, self._reunion)
        self._sums_at = slice(words, words + sums)
        self._sums = ring.head[self._sums_at].reshape(-1, _SUMS)  # of each worker, up to its newest turn
        self._shown = np.zeros_like(self._sums)  # of them, what this worker has counted
        return ring

    def note(self, samples: int, loss: float) -> None:
        self._reunion.drawn += samples
        super().note(samples, loss)

    def _tell(self) -> None:
        tally = self._tally
        self._sums[self._rank] += tally.pushes, tally.samples, tally.loss
        super()._tell()

    def _count_line(self, worker: int) -> None:
        """Counts by sums: who leads may have counted nothing before."""
        pushes, samples, loss = (self._sums[worker] - self._shown[worker]).tolist()
        self._shown[worker] = self._sums[worker]
        staleness = int(self._lines[worker, STALENESS])
        self._lines[worker, :DONE] = 0
        self._metrics.count(worker, int(pushes), int(samples), loss, staleness)

    def _ends(self) -> bool:
        return self._reunion.ends(lambda: None, self._all_done, self._ring.waiter)

    def _all_done(self) -> bool:
        """Hands the centre on where it is here; whether it was the final one."""
        view = self._ring.view
        if not self._ring.came() or self._ring.view != view:
            return False
        waited, computed = self._seconds or (0.0, time.perf_counter() - self._began)
        return self._hand_on(waited, computed)

    def _end(self, waited_s: float, computed_s: float) -> None:
        self._seconds = waited_s, computed_s
        while not self._ends():  # stopped early: what it was left is not to be done
            pass

    def facts(self) -> list[int]:
        return [self._ring.newest()[0]]

    def level(self, comm: MPI.Intracomm, members: list[int], facts: NDArray[np.int64]) -> list[int]:
        root = int(facts[:, 0].argmax())
        _, centre, head = self._ring.newest()
        self._new = centre.copy(), head.copy()
        for array in self._new:
            comm.Bcast(array, root)
        self._next = comm.Dup()
        reached: list[int] = self._new[1][self._sums_at].reshape(-1, _SUMS)[:, _SAMPLES].astype(int).tolist()
        return reached

    def settle(self, comm: MPI.Intracomm, members: list[int]) -> None:
        centre, head = self._new
        head[LAST] = -1  # there may be more to do
        self._lines_of(head)[:, DONE] = 0
        self._workers, self._members = comm, members
        self._leads = self.first = comm.rank == 0
        self._ring.rebuild(self._next, members, centre, head)
