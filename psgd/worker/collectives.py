"""What workers use of `psgd.collectives`, as an interface: a strategy gets its communicator and loads no engine."""

from typing import Any, Protocol

from mpi4py import MPI

from psgd.kernels.array import Array


class Pending(Protocol):
    """A call that may still be under way."""

    def Wait(self) -> object:
        """Returns once it has ended. Blocks."""


class Collectives(Protocol):
    """A communicator with mpi4py's verbs; `psgd.collectives.Communicator` documents them.

    Attributes:
        rank, size: of the workers.
        threaded: non-blocking calls move on by themselves.
    """

    rank: int
    size: int

    @property
    def threaded(self) -> bool: ...

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> None: ...

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> Pending: ...

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None: ...

    def Bcast(self, buf: Any, root: int = 0) -> None: ...

    def Barrier(self) -> None: ...

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Any: ...

    def algorithm(self, verb: str, nbytes: int) -> str: ...

    def empty(self, shape: Any, dtype: Any) -> Array: ...

    def free(self) -> None: ...
