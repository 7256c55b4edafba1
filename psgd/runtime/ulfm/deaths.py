"""The vocabulary: who has died, and how those that live give up a communicator and make another.

    failed    the ranks that are known to be dead; local, under a microsecond
    ack       from now on, a receive from any rank waits in spite of those
    revoke    ends all calls on this communicator, on all its ranks
    shrink    a communicator of those that live; collective among them
    agree     the bitwise AND of a number, the same on all that live, though ranks die meanwhile; collective among them

Two errors mean that a rank is dead, and several that a call ended because of that: `means_death` knows them.
"""

from typing import Any, Protocol, cast

from mpi4py import MPI

_ALL_BITS = (1 << 31) - 1


class Deaths(Protocol):
    """What a communicator says of deaths. Real: `MpiDeaths`; in tests a fake."""

    def failed(self) -> set[int]:
        """Ranks of the communicator that are known to be dead here. Does not block."""

    def ack(self) -> None:
        """Receives from any rank wait in spite of the ranks that are known to be dead. Does not block."""

    def revoke(self) -> None:
        """Ends all calls on the communicator, on all ranks, with an error that `means_death`. Does not block."""

    def shrink(self) -> Any:
        """A communicator of the ranks that live, in their order. Collective among these, blocks."""

    def agree(self, bits: int) -> int:
        """The bitwise AND of all living ranks' bits (0 to 2^31 - 1). Collective among these, blocks."""


class MpiDeaths:
    """Implements `Deaths` with MPI's calls.

    Args:
        comm: started with ULFM. Its errors are returned, not fatal, from now on.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm, self._group = comm, comm.Get_group()

    def failed(self) -> set[int]:
        dead = self._comm.Get_failed()
        return set(dead.Translate_ranks(None, self._group)) if dead.Get_size() else set()

    def ack(self) -> None:
        self._comm.Ack_failed()

    def revoke(self) -> None:
        if not self._comm.Is_revoked():
            self._comm.Revoke()

    def shrink(self) -> MPI.Intracomm:
        made = cast(MPI.Intracomm, self._comm.Shrink())
        made.Set_errhandler(MPI.ERRORS_RETURN)
        return made

    def agree(self, bits: int) -> int:
        assert 0 <= bits <= _ALL_BITS
        while True:
            try:
                return int(self._comm.Agree(bits))
            except MPI.Exception as error:  # all have the same answer then, but for deaths that nobody acknowledged
                if not means_death(error):
                    raise
                self.ack()


def means_death(error: BaseException) -> bool:
    """Whether a call of MPI failed because a rank is dead, or because another has revoked the communicator."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in _CLASSES


_CLASSES = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED, MPI.ERR_IN_STATUS} - {MPI.ERR_UNKNOWN}
