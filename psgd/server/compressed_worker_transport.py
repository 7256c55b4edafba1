"""A worker that pushes encoded gradients, and pulls what has changed of the parameters, encoded too.

What a push or a pull does not say stays with its sender for a later one. A push's header says in `extra` what follows:
the bytes of a payload, `WHOLE` for the gradient as it is, `NOTHING` for a push without samples. The answer has the same
form.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.runtime.mesh import Mesh
from psgd.server.payloads import Arrival
from psgd.server.wire import FORMAT, Header, MessageKind, pack
from psgd.server.worker_transport import MpiWorkerTransport

Vector = NDArray[np.floating]

WHOLE, NOTHING = -2, -1


class _ServerPayloads:
    """Payloads to and from one server."""

    def __init__(
        self, comm: MPI.Intracomm, rank: int, grads: Vector, params: Vector, compression: Compression, workers: int
    ) -> None:
        self.rank, self.grads, self.params = rank, grads, params
        self.up = compression.codec(grads.size, grads.dtype)
        self.out = np.empty(self.up.max_nbytes(), np.uint8)
        self.arrival = Arrival(comm, rank, compression.codec(grads.size, grads.dtype, workers).max_nbytes())


class CompressedWorkerTransport(MpiWorkerTransport):
    """Adds pushes and pulls of payloads to those of whole vectors; see `MpiWorkerTransport`.

    Args:
        compression: how gradients are made small.
        **rest: as there.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        grads: Vector,
        shards: Sequence[range],
        *,
        compression: Compression,
        segment: int,
        waiter: Waiter,
    ) -> None:
        never = [False] * len(shards)
        super().__init__(mesh, params, grads, shards, reached=never, segment=segment, waiter=waiter, inline=False)
        self._comm = mesh.world
        parts = [(mesh.server_rank(m), slice(r.start, r.stop)) for m, r in enumerate(shards)]
        self.cuts = [cut for _, cut in parts]
        self.links = [
            _ServerPayloads(mesh.world, rank, grads[cut], params[cut], compression, mesh.workers)
            if grads[cut].size
            else None
            for rank, cut in parts
        ]

    def push(
        self, fields: tuple[float, ...], with_grads: bool, hear: Callable[[Header], None], kind: int = MessageKind.PUSH
    ) -> None:
        """Pushes what the codecs say of the gradient, takes the answers, and brings the parameters up to them. Blocks.

        Args:
            fields: the header's fields from `push` on; `extra` is filled in.
            with_grads: whether there is a gradient, which must be finite.
            hear: told server 0's answer, before the parameters change.
            kind: what the header says.

        Raises:
            CodecError: an answer is damaged.
        """
        there = [(server, link) for server, link in zip(self._servers, self.links, strict=True) if link is not None]
        sends: list[MPI.Request] = []
        MPI.Prequest.Startall(
            [server.header_in for server in self._servers] + [link.arrival.request for _, link in there]
        )
        for index, (server, link) in enumerate(zip(self._servers, self.links, strict=True)):
            nbytes = NOTHING if link is None or not with_grads else link.up.encode(link.grads, link.out)
            pack(server.ask_view, (FORMAT, 0, kind, self._worker, index, 0, *fields[:5], nbytes, *fields[6:]))
            server.header_out.Start()
            self.bytes_sent += server.ask.nbytes
            if link is not None and nbytes > 0:
                sends.append(self._comm.Isend([link.out[:nbytes], MPI.BYTE], link.rank, Tag.PAYLOAD))
                self.bytes_sent += nbytes
        hear(self._read())
        for _, link in there:
            self._waiter.flowing(link.arrival.came)
            payload = link.arrival.payload
            link.up.decode_add(payload, link.params)
            self.bytes_received += payload.size
        self._waiter.flowing(partial(MPI.Request.Testall, self._headers_out))
        self._waiter.flowing(partial(MPI.Request.Testall, sends))

    def compile(self) -> None:
        """Compiles what a push needs, on codecs of their own, so that no step waits for it."""
        for link in self.links[:1]:
            if link is not None:
                link.up.warm_up()

    def add_left_over(self) -> None:
        """Adds to the gradients what the codecs have kept, so that a whole push says all."""
        for link in self.links:
            if link is not None:
                link.up.send_whole(link.grads)

    def close(self) -> None:
        """See `MpiWorkerTransport`."""
        close([link.arrival.request for link in self.links if link is not None], [])
        super().close()
