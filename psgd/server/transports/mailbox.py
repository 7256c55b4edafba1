"""One header each way between a server and a worker, with room behind it for a shard that travels inline."""

import ctypes

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.tags import Tag
from psgd.server.wire import HEADER_BYTES, Header, travels_inline

Vector = NDArray[np.floating]


class Mailbox:
    """Memory and persistent requests for the headers to and from one rank.

    Args:
        comm: a private communicator.
        rank: of the peer.
        params: the shard, which decides whether it travels inline.
        incoming, outgoing: tags.
        inline: small shards do.

    Attributes:
        inline: this one does.
        incoming, outgoing: the newest header that was received, and the one to be sent, where they lie.
        outgoing_bytes: to overwrite the latter as a whole.
        payload_in, payload_out: the shards behind them, empty without `inline`.
        nbytes: of a message.
        header_in, header_out: the requests.
    """

    def __init__(
        self, comm: MPI.Intracomm, rank: int, params: Vector, incoming: Tag, outgoing: Tag, inline: bool
    ) -> None:
        self.inline = inline and travels_inline(params.nbytes)
        self.nbytes = HEADER_BYTES + self.inline * params.nbytes
        inbox, outbox = np.zeros(self.nbytes, np.uint8), np.zeros(self.nbytes, np.uint8)
        self.incoming, self.outgoing = Header.inside(inbox), Header.inside(outbox)
        self.outgoing_bytes = outbox.data[: ctypes.sizeof(Header)]
        self.payload_in, self.payload_out = (box[HEADER_BYTES:].view(params.dtype) for box in (inbox, outbox))
        self.header_in = comm.Recv_init([inbox, MPI.BYTE], rank, incoming)
        self.header_out = comm.Send_init([outbox, MPI.BYTE], rank, outgoing)
