"""Those of a job that live: what they do together is made again where one dies in it, and so comes out alike on all."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from mpi4py import MPI

from psgd.runtime.ulfm.deaths import Deaths, MpiDeaths, means_death
from psgd.runtime.ulfm.tolerance import TOLERANCE

Found = TypeVar("Found")


class Survivors:
    """One rank's view of them; `TOLERANCE` has the newest. Nothing else communicates on `job` from now on.

    Args:
        job: all ranks; some may be dead.
        arrange: makes of a communicator of those that live the one that they use, in each attempt; collective over it.
            Without it, they use that one.
        complete: nobody is known to have died yet: the first attempt is made on `job` itself. Not with COMM_WORLD,
            which is revoked only where the whole job ends.
    """

    def __init__(
        self,
        job: MPI.Intracomm,
        arrange: Callable[[MPI.Intracomm], MPI.Intracomm] | None = None,
        complete: bool = False,
    ) -> None:
        self._deaths: Deaths = MpiDeaths(job)
        self._arrange = arrange
        self._comm: Any = job if complete else None
        TOLERANCE.survivors, TOLERANCE.gathers = job, self.together

    def together(self, act: Callable[[MPI.Intracomm], Found]) -> Found:
        """Does something with all that live. Collective among them, blocks.

        Args:
            act: is given their communicator; again, and another one, where a rank has died in it.

        Returns:
            What it returned, from an attempt in which nobody has died.
        """
        while True:
            fine, found = 1, None
            try:
                if self._comm is None:
                    self._comm = self._deaths.shrink()
                    if self._arrange is not None:
                        self._comm = self._arrange(self._comm)
                found = act(self._comm)
            except MPI.Exception as error:
                if not means_death(error):
                    raise
                fine = 0
                if self._comm is not None:  # None: another has died while those that live were gathered
                    self._comm.Revoke()
            if self._deaths.agree(fine):
                TOLERANCE.survivors = self._comm
                return cast(Found, found)
            self._comm = None
