"""The centre on its way round workers of which some die: each keeps what it sent last, until the next has come.

Each time that the centre is handed on is numbered. When a worker dies, the newest that anybody has is found, and goes
to the first one that lives behind whoever had it: the turn passes over the dead. What a dead worker had taken and not
sent on is lost with it.
"""

from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.tags import Tag
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.strategies.easgd.centre_ring import CentreRing
from psgd.worker.context import RunContext
from psgd.worker.interface import Vector
from psgd.worker.serverless.reunion import Reunion

_TURN, _WHO, _MORE = range(3)
"""Behind the head's words: how many times the centre was handed on, and by whom last, from 1."""


class SurvivingRing(CentreRing):
    """A worker's part.

    Args:
        context: of the run.
        words: numbers in the head, beside the ring's own.
        reunion: of this worker.

    Attributes:
        view: how many times those that live have met.
        waiter: for its waits.
    """

    def __init__(self, context: RunContext, words: int, reunion: Reunion) -> None:
        self._reunion, self._own = reunion, slice(words, words + _MORE)
        super().__init__(context, words + _MORE)
        MpiDeaths(self._comm)  # its errors are returned
        self.waiter = self._waiter
        self.view = self._sent_in = 0
        self._broken = False  # a request that failed looks like one that is done
        self._kept: tuple[Vector, Vector] | None = None  # centre and head as all had them when one died

    def _watch(self, context: RunContext) -> Any:  # deaths are no errors
        return self._reunion.liveness

    def check(self) -> None:
        self._liveness.check()
        self.came()

    def came(self) -> bool:
        """Whether the centre is here. Looks for deaths, and blocks where all that live meet."""
        self._reunion.look()
        return self._here or self._ended(self._receives)

    def receive(self) -> None:
        self._waiter.soon(self.came)
        if not self._here:
            self.bytes_received += self.incoming.nbytes + self.head.nbytes
        self._here = False
        self.head[:] = self._head_in

    def _ended(self, requests: list[MPI.Prequest]) -> bool:
        try:
            return not self._broken and MPI.Prequest.Testall(requests)  # type: ignore[arg-type]
        except MPI.Exception as error:
            self._fail(error)
            return False

    def _fail(self, error: MPI.Exception) -> None:
        self._broken = True
        self._reunion.notice(error)

    def expect(self) -> None:
        self._start(self._receives)

    def send(self) -> None:
        own = self.head[self._own]
        own[_TURN] += 1
        own[_WHO] = self.rank + 1
        self._sent_in = self.view
        self._start(self._sends)

    def _start(self, requests: list[MPI.Prequest]) -> None:
        if self._broken:  # all are about to meet
            return
        try:
            MPI.Prequest.Startall(requests)  # type: ignore[arg-type]
        except MPI.Exception as error:
            self._fail(error)

    def _gone(self) -> bool:
        self._reunion.look()
        return self.view != self._sent_in or self._ended(self._sends)

    def newest(self) -> tuple[int, Vector, Vector]:
        """The newest centre that this worker has: how many times it was handed on, itself, and its head."""
        found = [(self.centre, self.head), *([] if self._kept is None else [self._kept])]
        if self._here or self._ended(self._receives):
            found.append((self.incoming, self._head_in))
        centre, head = max(found, key=lambda each: each[1][self._own][_TURN])
        return int(head[self._own][_TURN]), centre, head

    def rebuild(self, comm: MPI.Intracomm, members: list[int], centre: Vector, head: Vector) -> None:
        """All that live go on with that centre. Does not communicate.

        Args:
            comm: they, for nothing else; a worker's index stays its number in the ring.
            members: which worker each rank of `comm` is.
            centre: the newest, the same on all; it is kept.
            head: likewise.
        """
        for request in (*self._receives, *self._sends):
            keep_for_ever(request)  # of workers that live some may still end, in memory that is used no more
        keep_for_ever(self._comm)
        MpiDeaths(comm)
        self._comm, self.size, self.view, self._broken = comm, len(members), self.view + 1, False
        self._kept = centre, head
        self.incoming, self._head_in = np.empty_like(centre), np.empty_like(head)
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        self.right = members[right]
        self._receives[:] = [comm.Recv_init(each, left, Tag.DATA) for each in (self._head_in, self.incoming)]
        self._sends[:] = [comm.Send_init(each, right, Tag.DATA) for each in (self.head, self.centre)]
        last = int(head[self._own][_WHO]) - 1
        turn = next((worker for worker in members if worker > last), members[0])
        self._here = turn == self.rank
        if self._here:
            self.incoming[:], self._head_in[:] = centre, head
        else:
            self.expect()

    def close(self) -> None:
        """No centre comes any more. What may have lost ranks is not freed."""
        self._close()
