"""The verbs of a Communicator that return a request: non-blocking ones, and persistent ones to be started often."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from psgd.collectives.arguments.operations import AnyOp
from psgd.collectives.dispatch.nonblocking import Request
from psgd.collectives.fastpath.persistent import Prequest


class StartedVerbs(ABC):
    """Part of `psgd.collectives.Communicator`, which documents the arguments and the errors."""

    @abstractmethod
    def _start(self, verb: str, arguments: tuple[Any, ...], algorithm: str | None, stream: Any = None) -> Request:
        """Starts a call now."""

    @abstractmethod
    def _prepare(self, verb: str, arguments: tuple[Any, ...], algorithm: str | None, stream: Any = None) -> Prequest:
        """Makes a call that is started later."""

    def Iallreduce(
        self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None, stream: Any = None
    ) -> Request:
        """As Allreduce, at once; the buffers are psgd's until the request is done."""
        return self._start("Allreduce", (sendbuf, recvbuf, op), algorithm, stream)

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: AnyOp = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Request:
        """As Reduce_scatter, at once."""
        return self._start("Reduce_scatter", (sendbuf, recvbuf, recvcounts, op), algorithm, stream)

    def Ireduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None, stream: Any = None
    ) -> Request:
        """As Reduce_scatter_block, at once."""
        return self._start("Reduce_scatter_block", (sendbuf, recvbuf, op), algorithm, stream)

    def Iallgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, stream: Any = None) -> Request:
        """As Allgather, at once."""
        return self._start("Allgather", (sendbuf, recvbuf), algorithm, stream)

    # Persistent calls. `info` is there as mpi4py has it, and is not used.

    def Allreduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: AnyOp = MPI.SUM,
        info: Any = None,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Prequest:
        """Binds an Allreduce to its buffers, to be started often. Collective, blocks.

        Raises:
            UsageError: some rank's own arguments are wrong; on all ranks.
            ContractError: ranks passed different calls, counts, dtypes, operations or roots; on all ranks.
        """
        return self._prepare("Allreduce", (sendbuf, recvbuf, op), algorithm, stream)

    def Reduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: AnyOp = MPI.SUM,
        root: int = 0,
        info: Any = None,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Prequest:
        """As Allreduce_init, of a Reduce."""
        return self._prepare("Reduce", (sendbuf, recvbuf, op, root), algorithm, stream)

    def Reduce_scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: AnyOp = MPI.SUM,
        info: Any = None,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Prequest:
        """As Allreduce_init, of a Reduce_scatter."""
        return self._prepare("Reduce_scatter", (sendbuf, recvbuf, recvcounts, op), algorithm, stream)

    def Reduce_scatter_block_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: AnyOp = MPI.SUM,
        info: Any = None,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Prequest:
        """As Allreduce_init, of a Reduce_scatter_block."""
        return self._prepare("Reduce_scatter_block", (sendbuf, recvbuf, op), algorithm, stream)

    def Allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: Any = None, *, algorithm: str | None = None, stream: Any = None
    ) -> Prequest:
        """As Allreduce_init, of an Allgather."""
        return self._prepare("Allgather", (sendbuf, recvbuf), algorithm, stream)

    def Allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: Any = None, *, algorithm: str | None = None, stream: Any = None
    ) -> Prequest:
        """As Allreduce_init, of an Allgatherv."""
        return self._prepare("Allgatherv", (sendbuf, recvbuf), algorithm, stream)

    def Bcast_init(
        self, buf: Any, root: int = 0, info: Any = None, *, algorithm: str | None = None, stream: Any = None
    ) -> Prequest:
        """As Allreduce_init, of a Bcast."""
        return self._prepare("Bcast", (buf, root), algorithm, stream)

    def Barrier_init(self, info: Any = None) -> Prequest:
        """As Allreduce_init, of a Barrier."""
        return self._prepare("Barrier", (), None)
