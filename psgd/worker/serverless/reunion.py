"""How workers that do not keep pace go on without those that died: all that live meet, level what they have, go on.

A worker looks for deaths in its steps and in its waits. Who has found one ends all calls of the workers' communicator;
the others find it too, and all meet. There they agree on what is applied, the samples of the dead are shared out, and
each goes on where it stood. It costs one wait for the slowest.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.patience import Patience
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.deaths import Deaths, MpiDeaths, means_death
from psgd.server.surviving.hand_over import HandOver
from psgd.worker.serverless.checkpoint_barrier import AbandonedError
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes

_PATIENCE_S = 10.0  # until MPI knows of the death that has ended a call
_LOOK_S = 0.02  # between two questions to MPI, each a few microseconds


class Reunites(Protocol):
    """A worker that can go on with fewer. Workers are called by their index at the start."""

    def facts(self) -> Sequence[int]:
        """What the others need to know of it for `level`; always as many numbers."""

    def level(self, comm: MPI.Intracomm, members: list[int], facts: NDArray[np.int64]) -> list[int]:
        """Brings all to one state, which `settle` takes. Collective, blocks; made again where one more dies in it.

        Args:
            comm: those that live.
            members: which worker each rank of it is.
            facts: a row of each of them.

        Returns:
            Of each worker, the dead too, how many samples it had drawn that are applied.
        """

    def settle(self, comm: MPI.Intracomm, members: list[int]) -> None:
        """All have that state: from now on the workers are these, and the first one counts. Does not communicate."""


class Reunion:
    """One worker's part.

    Args:
        mesh: of the run, with what it does about samples (`mesh.survival`).
        alarm: of this rank, which stays silent about the dead.
        worker: of this rank.

    Attributes:
        drawn: samples that this worker has drawn in all; it counts them.
        members: the workers that live, by their index at the start.
        liveness: for waits: tells of failures, but not of deaths.
    """

    def __init__(self, mesh: Mesh, alarm: Alarm, worker: Reunites) -> None:
        assert mesh.worker is not None
        alarm.lets_die = True
        self.drawn, self.members = 0, list(range(mesh.workers))
        self.liveness = TolerantLiveness(alarm, self)
        self.hand_over: HandOver = mesh.survival
        self._worker, self._index = worker, mesh.index
        self._comm = cast(MPI.Intracomm, mesh.worker)
        self._deaths: Deaths = MpiDeaths(self._comm)
        self._next_look = 0.0
        self._over = False
        self._met = self._saved = 0  # deaths after which all met; checkpoints

    def look(self) -> bool:
        """Meets the others where one has died, and blocks then; whether it did."""
        now = time.perf_counter()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_S
        MPI.COMM_SELF.Iprobe()  # progress: a step need not call MPI at all
        if not self._deaths.failed() and not self._called():
            return False
        self._deaths.revoke()
        self._deaths.agree(0)  # who has ended all its steps learns here that others have not
        self._reunite()
        return True

    def _called(self) -> bool:
        """Whether another has found a death that is not known here yet."""
        return self._comm.Is_revoked()

    def notice(self, error: MPI.Exception) -> None:
        """A call has failed: because of a death, which the next `look` finds, or it raises."""
        if not means_death(error):
            raise error
        self._next_look = 0.0

    def saves(self, votes: CheckpointVotes, act: Callable[[], object]) -> bool:
        """Makes a checkpoint, where nobody dies in it. Blocks.

        Args:
            votes: of this worker; put back if it comes to nothing.
            act: enters the barrier, and leaves it.

        Returns:
            Whether it is made: for all that live, or for none.
        """
        kept, met, saved = votes.keep(), self._met, self._saved
        try:
            act()
            self._saved += 1
            return True
        except AbandonedError:
            patience = Patience(_PATIENCE_S)
            while self._met == met and not self.look():
                if patience.over():
                    raise PeerLostError("a checkpoint was given up, but nobody has died") from None
                time.sleep(1e-3)
        if self._saved > saved:  # others had left the barrier when they met
            return True
        votes.put_back(kept)
        return False

    def ends(self, say: Callable[[], object], all_done: Callable[[], bool], waiter: Waiter) -> bool:
        """This worker's steps are over. Blocks.

        Args:
            say: tells the others.
            all_done: whether the steps of all that live are over; looks for deaths.
            waiter: for that.

        Returns:
            Whether the run is over, for all; if not, one has died meanwhile, and there may be more to do.
        """
        if self._over:
            return True
        members = len(self.members)
        say()
        waiter.until(lambda: all_done() or len(self.members) < members)
        if len(self.members) < members:
            return False
        self._over = bool(self._deaths.agree(1))
        if not self._over:
            self._reunite()
        return self._over

    def _reunite(self) -> None:
        while True:
            fine, living = 1, self._deaths.shrink()
            try:
                members, drawn, facts = self._tell(living)
                applied = self._worker.level(living, members, facts)
            except (PeerLostError, MPI.Exception) as error:  # one more has died meanwhile
                if isinstance(error, MPI.Exception) and not means_death(error):
                    raise
                fine = 0
                living.Revoke()
            if self._deaths.agree(fine):
                break
        lost = [worker for worker in self.members if worker not in members]
        self._met += 1
        self._comm, self._deaths, self.members = living, MpiDeaths(living), members
        self._worker.settle(living, members)
        self.hand_over.lead(members[0])
        waiting = dict(zip(members, drawn, strict=True))
        for worker in lost:
            _, words = self.hand_over.lost(worker, applied, waiting, members)
            self.hand_over.receive(words[self._index])

    def _tell(self, living: MPI.Intracomm) -> tuple[list[int], list[int], NDArray[np.int64]]:
        """Those that live, what each has drawn, and its facts. Collective, blocks."""
        mine = np.array([self._index, self.drawn, self._saved, *self._worker.facts()], np.int64)
        everyone = np.empty((living.size, mine.size), np.int64)
        living.Allgather(mine, everyone)
        members, drawn, saved = (column.tolist() for column in everyone.T[:3])
        self._saved = max(saved)
        return members, drawn, everyone[:, 3:]


class TolerantLiveness:
    """What waits call instead of `psgd.collectives.mpi.liveness.Liveness`, where deaths are no errors."""

    def __init__(self, alarm: Alarm, reunion: Reunion) -> None:
        self._alarm, self._reunion = alarm, reunion

    def check(self) -> None:
        """Raises PeerLostError where one has left with an error. Does not block."""
        self._alarm.check()

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Around calls of MPI: what fails because of a death is left undone, silently."""
        try:
            yield
        except MPI.Exception as error:
            self._reunion.notice(error)

    def close(self) -> None:
        """Nothing is to be given back."""
