"""A server's side of encoded pushes and pulls; see `psgd.server.compressed_worker_transport`.

For each worker the server keeps what that worker has of the shard, to the bit: an answer encodes the difference to
the parameters as they are now, so what an answer leaves out is in the next one's difference. Memory for each worker:
that and its decoded gradient, two shards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.kernels.errors import ContractError
from psgd.runtime.mesh import Mesh
from psgd.server.compressed_worker_transport import NOTHING, WHOLE
from psgd.server.log import LogEntry
from psgd.server.payloads import Arrival
from psgd.server.server_transport import MpiServerTransport
from psgd.server.wire import Header, MessageKind, pack

Vector = NDArray[np.floating]


class _WorkerPayloads:
    """Payloads from and to one worker.

    Attributes:
        extra: what followed its newest push, as its header said.
        known: the shard as that worker has it.
        gradient: its newest, decoded.
    """

    def __init__(self, comm: MPI.Intracomm, rank: int, params: Vector, up: int, down: int) -> None:
        self.rank = rank
        self.extra = WHOLE
        self.known, self.gradient = np.empty_like(params), np.empty_like(params)
        self.out = np.empty(down, np.uint8)
        self.arrival = Arrival(comm, rank, up)
        self.answer: MPI.Request | None = None


class CompressedServerTransport(MpiServerTransport):
    """Implements `psgd.server.transport.ServerTransport`; see `MpiServerTransport`.

    Args:
        compression: how gradients are made small.
        **rest: as there.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        ranges: Sequence[range],
        *,
        compression: Compression,
        waiter: Waiter,
        follows: bool = False,
    ) -> None:
        none: list[Vector | None] = [None] * mesh.workers
        super().__init__(mesh, params, ranges, grads=none, waiter=waiter, follows=follows, inline=False)
        self._comm = mesh.world
        self._whole: list[int] = []  # workers that the reply under way answers with whole parameters
        self._small: list[int] = []  # and with payloads
        self._header: tuple[float, ...] = ()
        self._links: list[_WorkerPayloads] = []
        if params.size:
            self._codec = compression.codec(params.size, params.dtype, mesh.workers)
            self._difference = np.zeros_like(params)
            self._codec.warm_up()
            sizes = compression.codec(params.size, params.dtype).max_nbytes(), self._codec.max_nbytes()
            self._links = [
                _WorkerPayloads(mesh.world, mesh.worker_rank(w), params, *sizes) for w in range(mesh.workers)
            ]
            MPI.Prequest.Startall([link.arrival.request for link in self._links])

    def next(self) -> Header | LogEntry:
        """See `psgd.server.transport.ServerTransport`."""
        event = super().next()
        if isinstance(event, Header) and self._links and (event.kind == MessageKind.PUSH or event.extra == NOTHING):
            self._links[event.worker].extra = event.extra  # or a resumed worker waits for a payload
        return event

    def fetch(self, worker: int, segment: int) -> Vector:
        """See `psgd.server.transport.ServerTransport`."""
        link = self._links[worker]
        if link.extra == WHOLE:
            return super().fetch(worker, segment)
        if segment == 0:
            self._waiter.flowing(link.arrival.came)
            payload = link.arrival.payload
            if payload.size != link.extra:
                raise ContractError(f"worker {worker} announced a payload of {link.extra} bytes, sent {payload.size}")
            link.gradient.fill(0)
            self._codec.decode_add(payload, link.gradient)
            self.bytes_received += payload.size
            link.arrival.request.Start()
        part = self._ranges[segment]
        return link.gradient[part.start : part.stop]

    def reply(self, workers: Sequence[int], header: tuple[float, ...]) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        small = [w for w in workers if self._links and header[2] != MessageKind.END and self._links[w].extra != WHOLE]
        self._small, self._header = small, header
        self._whole = [w for w in workers if w not in small]
        super().reply(self._whole, header)

    def emit(self, workers: Sequence[int], segment: int) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        super().emit(self._whole, segment)
        part = self._ranges[segment]
        for worker in self._whole:
            self._links[worker].known[part.start : part.stop] = self._params[part.start : part.stop]
        if segment == len(self._ranges) - 1:
            for worker in self._small:
                self._send_difference(worker)

    def _send_difference(self, worker: int) -> None:
        link, peer, codec = self._links[worker], self._workers[worker], self._codec
        if link.answer is not None:
            self._waiter.until(link.answer.Test)
        np.subtract(self._params, link.known, out=self._difference)
        codec.residual.fill(0)  # the difference has it
        nbytes = codec.encode(self._difference, link.out)
        if nbytes == 0:
            raise ContractError(f"the parameters for worker {worker} are not finite: lower the rate, or use clip_norm")
        codec.decode_add(link.out[:nbytes], link.known)
        self._waiter.until(peer.header_out.Test)
        pack(peer.answer_view, (*self._header[:3], worker, *self._header[4:]))
        self._answer(peer)
        link.answer = self._comm.Isend([link.out[:nbytes], MPI.BYTE], link.rank, Tag.PAYLOAD)
        self.bytes_sent += nbytes

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See `MpiServerTransport`. The residual is made anew for each answer."""
        found = self._codec.arrays() if self._links else {}
        return {f"down.{name}": array for name, array in found.items() if name != "residual"}

    def restore(self, arrays: Mapping[str, NDArray[Any]], pulled: Mapping[int, Vector]) -> None:
        """See `MpiServerTransport`."""
        for name, array in self.arrays().items():
            if name in arrays:
                array[:] = arrays[name]
        if self._links:
            for worker, shard in pulled.items():
                self._links[worker].known[:] = shard

    def drain(self) -> None:
        """See `psgd.server.transport.ServerTransport`."""
        super().drain()
        for link in self._links:
            if link.answer is not None:
                self._waiter.until(link.answer.Test)

    def close(self) -> None:
        """See `MpiServerTransport`."""
        close(
            [link.arrival.request for link in self._links],
            [link.answer for link in self._links if link.answer is not None],
        )
        super().close()
