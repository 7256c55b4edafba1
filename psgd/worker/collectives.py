"""What workers use of `psgd.collectives`, as an interface: a strategy gets its communicator and loads no engine."""

from typing import Any, Protocol

from mpi4py import MPI

from psgd.kernels.array import Array


class Persistent(Protocol):
    """A call that is bound to its buffers, to be started often (`psgd.collectives.fastpath.persistent.Prequest`)."""

    def Start(self) -> None:
        """Starts it. Does not block."""

    def Wait(self) -> object:
        """Returns once it has ended. Blocks."""

    def run(self) -> None:
        """Starts it and waits."""

    def Free(self) -> None:
        """Lets go of the buffers."""


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

    def Allreduce_init(self, sendbuf: Any, recvbuf: Any) -> Persistent: ...

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None: ...

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None: ...

    def Allgather_init(self, sendbuf: Any, recvbuf: Any) -> Persistent: ...

    def Bcast(self, buf: Any, root: int = 0) -> None: ...

    def Barrier(self) -> None: ...

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Any: ...

    def algorithm(self, verb: str, nbytes: int) -> str: ...

    def empty(self, shape: Any, dtype: Any) -> Array: ...

    def free(self) -> None: ...
