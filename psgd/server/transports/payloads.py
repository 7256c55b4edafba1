"""Payloads of encoded vectors between two ranks, one after the other in each direction."""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag


class Payloads:
    """Memory for one payload each way, the receive that fills one and the send that reads the other.

    Args:
        comm: a private communicator.
        rank: of the peer.
        incoming, outgoing: bytes of the longest payload that comes, and that goes.

    Attributes:
        out: to encode into, once `sent()`.
        receive: the request of the next payload that comes.
    """

    def __init__(self, comm: MPI.Intracomm, rank: int, incoming: int, outgoing: int) -> None:
        self.out = np.empty(outgoing, np.uint8)
        self._comm, self._rank = comm, rank
        self._into = np.empty(incoming, np.uint8)
        self._status = MPI.Status()
        self._send: MPI.Request | None = None
        self.receive = comm.Recv_init([self._into, MPI.BYTE], rank, Tag.PAYLOAD)
        self._here = False

    def expect(self) -> None:
        """Before each payload comes: what has come so far has been read. Does not block."""
        self._here = False
        self.receive.Start()

    def arrived(self) -> bool:
        """Whether it has; asked again and again. Does not block."""
        if not self._here:  # a request that was done has no status any more
            self._here = self.receive.Test(self._status)
        return self._here

    @property
    def payload(self) -> NDArray[np.uint8]:
        """What has arrived: a view, valid until the next is expected."""
        return self._into[: self._status.Get_count(MPI.BYTE)]

    def send(self, nbytes: int) -> None:
        """Sends so much of `out`. Does not block."""
        self._send = self._comm.Isend([self.out[:nbytes], MPI.BYTE], self._rank, Tag.PAYLOAD)

    def sent(self) -> bool:
        """Whether `out` may be written again. Does not block."""
        return self._send is None or self._send.Test()

    def close(self) -> None:
        """Takes the requests back. Blocks for a moment at most."""
        close([self.receive], [] if self._send is None else [self._send])
