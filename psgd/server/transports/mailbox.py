"""One header each way between a server and a worker, with room behind it for a shard that travels inline."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.server.wire import HEADER_BYTES, Header, settings_bytes, travels_inline

Vector = NDArray[np.floating]
_EAGER_TESTS = 100  # about 10 us of nothing but tests: the answer to a small push comes within that


def start_of(requests: Sequence[MPI.Prequest]) -> Callable[[], object]:
    """What starts them all. One alone takes half the time of a list."""
    return requests[0].Start if len(requests) == 1 else partial(MPI.Prequest.Startall, list(requests))


def test_of(requests: Sequence[MPI.Request]) -> Callable[[], bool]:
    """What tests whether all are done, with the same difference."""
    return requests[0].Test if len(requests) == 1 else partial(MPI.Request.Testall, list(requests))


def eager_tests(waiter: Waiter) -> range:
    """How often to test, as a loop, before a `waiter` begins to wait, which looks at other things between tests."""
    return range(0 if waiter.crowded else _EAGER_TESTS)


class Mailbox:
    """Memory and persistent requests for the headers to and from one rank.

    Args:
        comm: a private communicator.
        rank: of the peer.
        params: the shard, which decides whether it travels inline.
        incoming, outgoing: tags.
        inline: small shards do.
        shared: the server reads gradients where they lie, so a push is a header alone.
        settings: how many numbers for the rule follow a push's header.

    Attributes:
        inline: the parameters do, and without `shared` gradients too.
        incoming, outgoing: the newest header that was received, and the one to be sent, where they lie.
        outgoing_bytes: to overwrite the latter as a whole.
        settings: these numbers of the newest push that was received, or the one to be sent.
        payload_in, payload_out: the shards behind them, empty where they travel otherwise.
        nbytes_in, nbytes_out: of a message.
        header_in, header_out: the requests.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        rank: int,
        params: Vector,
        incoming: Tag,
        outgoing: Tag,
        *,
        inline: bool,
        shared: bool = False,
        settings: int = 0,
    ) -> None:
        self.inline = inline and travels_inline(params.nbytes)
        # A header alone takes a short way through most MPIs, which one with 4 KiB behind it does not.
        rooms = [HEADER_BYTES + (tag == Tag.PUSH) * settings_bytes(settings) for tag in (incoming, outgoing)]
        self.nbytes_in, self.nbytes_out = (
            room + (self.inline and not (shared and tag == Tag.PUSH)) * params.nbytes
            for tag, room in zip((incoming, outgoing), rooms, strict=True)
        )
        inbox, outbox = np.zeros(self.nbytes_in, np.uint8), np.zeros(self.nbytes_out, np.uint8)
        self.incoming, self.outgoing = Header.inside(inbox), Header.inside(outbox)
        self.outgoing_bytes = outbox.data[: ctypes.sizeof(Header)]
        pushes = inbox if incoming == Tag.PUSH else outbox
        self.settings = pushes[HEADER_BYTES : HEADER_BYTES + 8 * settings].view(np.float64)
        self.payload_in, self.payload_out = (
            box[room:].view(params.dtype) for box, room in zip((inbox, outbox), rooms, strict=True)
        )
        self.header_in = comm.Recv_init([inbox, MPI.BYTE], rank, incoming)
        self.header_out = comm.Send_init([outbox, MPI.BYTE], rank, outgoing)
