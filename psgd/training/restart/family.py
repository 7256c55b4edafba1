"""All communicators of one attempt of a run: a rank that is to leave it ends every call on all of them.

Revoking a communicator ends no `Agree` and no `Shrink`, which wait for all that live. So whoever leaves takes part in
one more agreement on each communicator, and says there that it has left; the others say that they are here. All that
have agreed learn the same, and nobody begins to shrink before all are here.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError
from psgd.runtime.ulfm.deaths import means_death

_OVER = "another rank of the run died"
_HERE = -(1 << 31)  # the sign: it stays in the bitwise AND where all have it


class Family:
    """One rank's communicators that come from the one that the attempt was given, and what of psgd's waits looks.

    Attributes:
        ended: nobody may wait on them any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: list[FamilyComm] = []
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
                    made.say_left()
            if ended:
                _revoke(made)
        return made

    def end(self) -> None:
        """Ends all calls on all of them, on all their ranks. Does not block; any thread may call it."""
        with self._lock:
            self.ended = True
            members = list(self._members)
            for each in members:
                each.say_left()
        for each in members:
            _revoke(each)

    @contextlib.contextmanager
    def agreement(self, comm: "FamilyComm") -> Iterator[None]:
        """Around what all that live do together on a communicator: what `end` says there comes before or after it.

        Raises:
            PeerLostError: the attempt is over.
        """
        with self._lock:
            if self.ended or comm.over:
                raise PeerLostError(_OVER)
            comm.busy = True
        try:
            yield
        finally:
            with self._lock:
                comm.busy = False
                if self.ended:
                    comm.say_left()

    def advance(self) -> None:
        """One of the things that every wait of collectives looks at.

        Raises:
            PeerLostError: the attempt is over.
        """
        if self.ended:
            raise PeerLostError(_OVER)


class FamilyComm(MPI.Intracomm):
    """A communicator that knows its family. Made by `Family.adopt`.

    Attributes:
        family: as given.
        busy: this rank is in an agreement.
        over: there are no more: some rank has left.
    """

    family: Family
    busy = over = False

    def Dup(self, info: Any = None) -> Any:
        """As of mpi4py; so are the others."""
        return self.family.adopt(MPI.Intracomm(self).Dup() if info is None else MPI.Intracomm(self).Dup(info))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        return self.family.adopt(cast(MPI.Intracomm, MPI.Intracomm(self).Split(color, key)))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        return self.family.adopt(cast(MPI.Intracomm, MPI.Intracomm(self).Split_type(split_type, key, info)))

    def Shrink(self) -> Any:
        with self.family.agreement(self):
            while True:
                try:
                    self._agree(0)
                    break
                except MPI.Exception as error:  # as in `psgd.runtime.ulfm.deaths`
                    if not means_death(error):
                        raise
                    self.Ack_failed()
            made = cast(MPI.Intracomm, MPI.Intracomm(self).Shrink())
        return self.family.adopt(made)

    def Agree(self, flag: int) -> int:
        with self.family.agreement(self):
            return self._agree(flag)

    def _agree(self, flag: int) -> int:
        """As `Agree`.

        Raises:
            PeerLostError: some rank has left, on all that have not.
        """
        word = np.array([flag + _HERE], np.int32)
        try:
            Waiter(crowded=True).until(MPI.Intracomm(self).Iagree(word).Test)
        finally:  # where one has died that nobody knew of, the answer is as good
            self.over = bool(word[0] >= 0)
            if self.over:
                raise PeerLostError(_OVER)
        return int(word[0]) - _HERE

    def say_left(self) -> None:
        """This rank takes part in no more agreement but the next. Does not block; in the family's lock."""
        if self.busy or self.over or self == MPI.COMM_NULL:
            return
        self.over, word = True, np.zeros(1, np.int32)
        with contextlib.suppress(MPI.Exception):  # freed meanwhile by the thread that trains
            keep_for_ever((word, MPI.Intracomm(self).Iagree(word)))


def _revoke(comm: MPI.Intracomm) -> None:
    try:
        if comm != MPI.COMM_NULL and not comm.Is_revoked():
            comm.Revoke()
    except MPI.Exception:
        pass  # freed meanwhile by the thread that trains
