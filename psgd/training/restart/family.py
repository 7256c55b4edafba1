"""All communicators of one attempt of a run: a rank that is to leave it ends every call on all of them."""

import threading
from typing import Any, cast

from mpi4py import MPI

from psgd.kernels.errors import PeerLostError


class Family:
    """One rank's communicators that come from the one that the attempt was given, and what of psgd's waits looks.

    Attributes:
        ended: nobody may wait on them any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: list[MPI.Intracomm] = []
        self.ended = False

    def adopt(self, comm: MPI.Intracomm) -> "FamilyComm":
        """The same communicator; what is made of it belongs to this family too."""
        made = FamilyComm(comm)
        made.family = self
        if comm != MPI.COMM_NULL:
            with self._lock:
                self._members = [each for each in self._members if each != MPI.COMM_NULL]  # those that were freed
                self._members.append(made)
                ended = self.ended
            if ended:
                _revoke(made)
        return made

    def end(self) -> None:
        """Ends all calls on all of them, on all their ranks. Does not block; any thread may call it."""
        with self._lock:
            self.ended = True
            members = list(self._members)
        for each in members:
            _revoke(each)

    def advance(self) -> None:
        """One of the things that every wait of collectives looks at.

        Raises:
            PeerLostError: the attempt is over.
        """
        if self.ended:
            raise PeerLostError("another rank of the run died")


class FamilyComm(MPI.Intracomm):
    """A communicator that knows its family. Made by `Family.adopt`."""

    family: Family

    def Dup(self, info: Any = None) -> Any:
        """As of mpi4py; so are the others."""
        return self.family.adopt(MPI.Intracomm(self).Dup() if info is None else MPI.Intracomm(self).Dup(info))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        return self.family.adopt(cast(MPI.Intracomm, MPI.Intracomm(self).Split(color, key)))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        return self.family.adopt(cast(MPI.Intracomm, MPI.Intracomm(self).Split_type(split_type, key, info)))

    def Shrink(self) -> Any:
        return self.family.adopt(cast(MPI.Intracomm, MPI.Intracomm(self).Shrink()))


def _revoke(comm: MPI.Intracomm) -> None:
    try:
        if comm != MPI.COMM_NULL and not comm.Is_revoked():
            comm.Revoke()
    except MPI.Exception:
        pass  # freed meanwhile by the thread that trains
