"""How workers that keep pace go on without those that died: revoke, shrink, agree on the last complete round, go on.

A death in a round leaves some workers behind it, who found it complete, and some before it. If any is behind it, the
others take its state and are behind it too; else all do the round again, with what each had before it. So all that live
have the same rounds behind them, and the parameters of these, bit for bit.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.errors import PeerLostError
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.deaths import Deaths, MpiDeaths
from psgd.server.surviving.hand_over import HandOver

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.worker.serverless.status_rounds import StatusRounds

_PATIENCE_S = 5.0  # until MPI knows of a death that shared memory has shown


class Regroups(Protocol):
    """A worker that can go on with fewer."""

    def keep(self) -> None:
        """Before a round: keeps what it changes."""

    def put_back(self) -> None:
        """The round was not complete: all is as before it."""

    def revoke(self) -> None:
        """Ends all calls of its communicators, on all workers. Does not block."""

    def rebuild(self, comm: "Communicator", members: list[int]) -> None:
        """From now on the workers are these. Collective over `comm`, blocks."""

    def share(self, comm: MPI.Intracomm, root: int, takes: bool) -> None:
        """All get the state behind the last complete round, as `root` has it. Collective, blocks.

        Args:
            comm: those that live.
            root: of them.
            takes: this worker was before that round, and is behind it then.
        """


class Regroup:
    """One worker's part.

    Args:
        mesh: of the run, with what it does about samples (`mesh.survival`).
        alarm: of this rank, which stays silent about the dead.
        worker: of this rank.

    Attributes:
        drawn: samples that this worker has drawn in all; it counts them.
        members: the workers that live, by their index at the start.
        hand_over: what the run does about samples.
    """

    def __init__(self, mesh: Mesh, alarm: Alarm, worker: Regroups) -> None:
        assert mesh.worker is not None
        alarm.lets_die = True
        self.drawn, self.members = 0, list(range(mesh.workers))
        self._worker, self.hand_over = worker, mesh.survival
        self.hand_over.all_count = True  # rounds tell all
        self._index = mesh.index
        self._comm = cast(MPI.Intracomm, mesh.worker)
        self._deaths: Deaths = MpiDeaths(self._comm)
        self._applied = np.zeros(mesh.workers, np.int64)  # each worker's samples in the complete rounds, but for
        self._since = np.zeros(mesh.workers, np.int64)  # those of members since they have become so
        self._rounds = 0  # that are complete here
        self._made: Communicator | None = None  # while they regroup

    def run(self, act: Callable[[], None], samples: Callable[[], NDArray[np.int64]], ended: Callable[[], bool]) -> None:
        """Makes a round, with those that live. Collective, blocks.

        Args:
            act: makes it.
            samples: of each worker in the round that was made.
            ended: whether it was the last; then all learn whether it was so for all.

        Raises:
            PeerLostError: a worker left with an error, and did not die.
        """
        while True:
            self._worker.keep()
            try:
                act()
                self._rounds += 1
                self._since += samples()
            except (PeerLostError, MPI.Exception) as error:
                if not self._go_on(error):
                    self._worker.put_back()
                    continue
            while ended() and not self._deaths.agree(1):
                self._regroup()
            return

    def ends(self, end: Callable[[], None], rounds: Callable[[], "StatusRounds"]) -> bool:
        """Says in rounds that this worker's steps are over. Collective, blocks.

        Args:
            end: makes such a round.
            rounds: gives the worker's, which are others after a death.

        Returns:
            Whether the run is, for all; if not, one has died in such a round, and there may be more to do.
        """
        members = len(self.members)
        while True:
            end()
            if len(self.members) < members:
                rounds().active = len(self.members)
                return False
            if rounds().all_done:
                return True

    def _go_on(self, error: Exception) -> bool:
        """Regroups after an error; whether the round is complete all the same."""
        limit = time.monotonic() + _PATIENCE_S
        while not self._deaths.failed():
            if time.monotonic() > limit:
                raise error
            time.sleep(1e-3)
            MPI.COMM_SELF.Iprobe()  # progress
        self._worker.revoke()
        self._deaths.agree(0)  # who has seen the last round end learns here that others have not
        return self._regroup()

    def _regroup(self) -> bool:
        """All that live do this together; whether this worker has a round behind it that it had not."""
        while True:
            fine, taken, living, self._made = 1, False, self._deaths.shrink(), None
            try:
                members, applied, waiting, taken = self._meet(living)
            except (PeerLostError, MPI.Exception):  # one more has died meanwhile
                fine = 0
                if self._made is not None:
                    self._made.revoke()
                living.Revoke()
            if self._deaths.agree(fine):
                break
        self._since = np.zeros(len(members), np.int64)
        lost = [worker for worker in self.members if worker not in members]
        self._comm, self._deaths, self.members, self._applied = living, MpiDeaths(living), members, applied
        hand_over: HandOver = self.hand_over
        hand_over.lead(members[0])
        for worker in lost:
            _, words = hand_over.lost(worker, applied.tolist(), waiting, members)
            hand_over.receive(words[self._index])
        return taken

    def _meet(self, living: MPI.Intracomm) -> tuple[list[int], NDArray[np.int64], dict[int, int], bool]:
        """What those that live know of each other, and the state of who is ahead."""
        from psgd.collectives import Communicator

        self._applied[self.members] += self._since
        self._since[:] = 0
        everyone = np.empty((living.size, 3), np.int64)
        living.Allgather(np.array([self._index, self._rounds, self.drawn], np.int64), everyone)
        members, rounds, drawn = (column.tolist() for column in everyone.T)
        root = rounds.index(max(rounds))
        takes = self._rounds < max(rounds)
        applied = self._applied.copy()
        living.Bcast(applied, root)
        self._made = Communicator(living)
        self._worker.rebuild(self._made, members)
        self._worker.share(living, root, takes)
        self._rounds = max(rounds)
        return members, applied, dict(zip(members, drawn, strict=True)), takes
