"""The ranks of a job that act in a run, and those that stand by: how they meet, and who acts next."""

import time
from collections.abc import Callable
from typing import cast

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.runtime.agreement import gather
from psgd.runtime.ulfm.deaths import MpiDeaths, means_death
from psgd.training.restart.succession import led, ordered

_LOOK_S = 0.05
_WAKE = 7


class Crew:
    """One rank's view of them.

    Args:
        job: all ranks, of which the first are the run's. Collective over it, blocks.
        acting: how many act.

    Attributes:
        job: all that live, as known from the last meeting: those that act, then those that stand by.
        acting: as given.
        lost: ranks of the job as it was started that have died, in the order in which that was found out.
    """

    def __init__(self, job: MPI.Intracomm, acting: int) -> None:
        self._numbers = list(range(job.Get_size()))  # by rank of `job`, as the job was started
        self.lost: list[int] = []
        self._take(job, acting)

    def _take(self, job: MPI.Intracomm, acting: int) -> None:
        self.job, self.acting = job, acting
        self._bell = job.Dup()
        self._bell.Set_errhandler(MPI.ERRORS_RETURN)
        self._deaths = MpiDeaths(job)

    @property
    def place(self) -> int | None:
        """This rank's in the run; None stands by."""
        rank = self.job.Get_rank()
        return rank if rank < self.acting else None

    def act(self, acting: int) -> None:
        """From now on so many act, the same on all ranks. Does not communicate."""
        self.acting = acting

    @property
    def numbers(self) -> list[int]:
        """By rank of `job`, its rank in the job as it was started."""
        return list(self._numbers)

    def team(self) -> MPI.Intracomm | None:
        """A communicator of those that act; of nobody where this rank stands by. Collective, blocks.

        Returns:
            None where one more has died since the last meeting: all are called to another one.
        """
        color = MPI.UNDEFINED if self.place is None else 0
        try:
            return cast(MPI.Intracomm, self.job.Split(color, self.job.Get_rank()))
        except MPI.Exception as error:
            if MPI.Comm.Compare(self.job, MPI.COMM_WORLD) == MPI.IDENT or not means_death(error):
                raise
            self.job.Revoke()  # others may wait for this rank in the same call
            self.ring()
            return None

    def ring(self) -> None:
        """Calls all to a meeting, whatever they do. Does not block; any thread may call it."""
        if not self._bell.Is_revoked():
            self._bell.Revoke()

    @property
    def rung(self) -> bool:
        """Whether somebody calls. Makes progress; any thread may ask."""
        MPI.COMM_SELF.Iprobe()
        return bool(self._bell.Is_revoked())

    def stand_by(self) -> bool:
        """Sleeps until the run is over for a rank that acts, or somebody calls. Blocks.

        Returns:
            Whether the run was refused by all that act: there is no meeting.
        """
        word = np.zeros(1, np.uint8)
        while not self.rung:
            if self._alone():
                self.ring()
            for rank in range(self.acting):
                if self._woken_by(rank):
                    self.job.Recv(word, rank, _WAKE)
                    return bool(word[0])
            time.sleep(_LOOK_S)
        return False

    def _alone(self) -> bool:
        """Whether all that act are dead."""
        dead = self.job.Get_failed()
        if dead.Get_size() < self.acting:
            return False
        return set(range(self.acting)) <= set(dead.Translate_ranks(None, self.job.Get_group()))

    def _woken_by(self, rank: int) -> bool:
        try:
            return bool(self.job.Iprobe(rank, _WAKE))
        except MPI.Exception:  # it is dead: either the run goes on without it, or somebody calls
            return False

    def wake(self, refused: bool = False) -> None:
        """The run is over for this rank, and those that stand by are to come to the meeting. Does not block.

        Args:
            refused: by all that act; there is none.
        """
        word = np.array([refused], np.uint8)
        for rank in range(self.acting, self.job.Get_size()):
            try:
                keep_for_ever(self.job.Isend(word, rank, _WAKE))
            except MPI.Exception:
                continue  # it is dead

    def meet(self, fine: bool) -> bool:
        """Whether the run has ended well for all. All that live come here; blocks until they have."""
        return bool(self._deaths.agree(int(fine)))

    def regroup(self, wanted: Callable[[int], int] | None, leads: bool = False) -> None:
        """Those that live go on, as many as wanted in the run. Collective among them, blocks.

        Args:
            wanted: how many are to act, of so many that live; the same on all. None leaves it at those that do.
            leads: this rank is to be the first of all, where `wanted` is None.
        """
        mine = {"place": self.place, "number": self._numbers[self.job.Get_rank()], "leads": leads}
        while True:
            fine, living = 1, self._deaths.shrink()
            try:
                everyone = gather(living, mine)
                places = [each["place"] for each in everyone]
                if wanted is None:
                    leaders = [rank for rank, each in enumerate(everyone) if each["leads"]]  # none, where it is dead
                    acts = [rank for rank, place in enumerate(places) if place is not None]
                    first = (leaders or acts or [0])[0]
                    acting, order = sum(place is not None for place in places), led(places, first)
                else:
                    acting = wanted(len(everyone))
                    order = ordered(places, acting)
                made = cast(MPI.Intracomm, living.Split(0, order.index(living.Get_rank())))
                made.Set_errhandler(MPI.ERRORS_RETURN)
                bell = made.Dup()
            except MPI.Exception:  # one more has died meanwhile
                fine = 0
                living.Revoke()
            if self._deaths.agree(fine):
                break
        numbers = [everyone[rank]["number"] for rank in order]
        self.lost += [number for number in self._numbers if number not in numbers]
        self._numbers = numbers
        self.job, self.acting, self._bell, self._deaths = made, acting, bell, MpiDeaths(made)
