"""A worker's side of the wire over MPI: one exchange with all servers, in persistent requests made once.

Gradients are sent from where the caller put them and parameters received where it reads them, with no copy between,
except where a shard is so small that it travels inside the header's message. Of a gradient that lies in memory shared
with the server only the header is sent.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import ContractError
from psgd.runtime.mesh import Mesh
from psgd.server.wire import FORMAT, HEADER_BYTES, Header, pack, travels_inline, unpack

Vector = NDArray[np.floating]


class _Server:
    """Buffers and requests for one server's shard."""

    def __init__(
        self, comm: MPI.Intracomm, rank: int, params: Vector, grads: Vector, segment: int, shared: bool, inline: bool
    ) -> None:
        ranges = segments(params.size, segment)
        self.inline = inline and travels_inline(params.nbytes)
        self.segments = len(ranges)
        self.params, self.grads = params, grads
        payload = params.nbytes if self.inline else 0
        self.ask = np.zeros(HEADER_BYTES + payload, np.uint8)
        self.answer = np.zeros(HEADER_BYTES + payload, np.uint8)
        self.inline_out = self.ask[HEADER_BYTES:].view(params.dtype)
        self.inline_in = self.answer[HEADER_BYTES:].view(params.dtype)
        self.ask_view, self.answer_view = self.ask.data, self.answer.data  # struct reads these faster
        self.header_out = comm.Send_init([self.ask, MPI.BYTE], rank, Tag.PUSH)
        self.header_in = comm.Recv_init([self.answer, MPI.BYTE], rank, Tag.REPLY)
        self.grads_out: list[MPI.Prequest] = []
        self.params_in: list[MPI.Prequest] = []
        for part in ranges if not self.inline else ():
            view, grad = params[part.start : part.stop], grads[part.start : part.stop]
            self.params_in.append(comm.Recv_init([view, MPI.BYTE], rank, Tag.PARAMETERS))
            if not shared:
                self.grads_out.append(comm.Send_init([grad, MPI.BYTE], rank, Tag.GRADIENT))


class MpiWorkerTransport:
    """Pushes to all servers and takes their answers, as one blocking exchange.

    Args:
        mesh: who is who.
        params: the whole vector, overwritten by replies.
        grads: the whole gradient, of the same size and dtype; read while an exchange runs.
        shards: the servers' ranges.
        reached: whether each server reads `grads` where it lies.
        segment: elements in a segment.
        waiter: how to wait.
        inline: small shards travel in the header's message.

    Attributes:
        worker, workers: this one's index, and how many there are.
        told: `extra` of the newest answers, of all servers together.
        bytes_sent, bytes_received: so far.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        grads: Vector,
        shards: Sequence[range],
        *,
        reached: Sequence[bool],
        segment: int,
        waiter: Waiter,
        inline: bool = True,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self.told = 0
        self._worker = self.worker = mesh.index
        self.workers = mesh.workers
        self._waiter = waiter
        self._servers = [
            _Server(
                mesh.world,
                mesh.server_rank(m),
                params[r.start : r.stop],
                grads[r.start : r.stop],
                segment,
                direct,
                inline,
            )
            for m, (r, direct) in enumerate(zip(shards, reached, strict=True))
        ]
        servers = self._servers
        self._headers_out = [s.header_out for s in servers]
        self._sends = self._headers_out + [r for s in servers for r in s.grads_out]
        self._params_in = [r for s in servers for r in s.params_in]
        self._receives = [s.header_in for s in servers] + self._params_in
        self._arrived = partial(MPI.Request.Testall, self._params_in)
        self._payload = sum(s.params.nbytes for s in servers if not s.inline)

    def exchange(self, kind: int, fields: tuple[float, ...], with_grads: bool) -> Header:
        """Sends a header to all servers, gradients behind it if asked, and blocks until all have answered.

        Args:
            kind: what the header says.
            fields: the header's fields from `push` on.
            with_grads: whether the gradients go with it.

        Returns:
            Server 0's answer; parameters are in place.

        Raises:
            PeerLostError: another rank gave up (the waits raise it).
            ContractError: shards with different versions: a torn read.
        """
        for index, server in enumerate(self._servers):
            pack(server.ask_view, (FORMAT, 0, kind, self._worker, index, server.segments, *fields))
            if server.inline and with_grads:
                server.inline_out[:] = server.grads
            self.bytes_sent += server.ask.nbytes
        sends = self._sends if with_grads else self._headers_out
        MPI.Prequest.Startall(self._receives)
        MPI.Prequest.Startall(sends)
        if with_grads:
            self.bytes_sent += self._payload
        if len(sends) > len(self._servers):
            self._waiter.flowing(partial(MPI.Request.Testall, sends))
        first = self._read()
        if self._payload:
            self._waiter.flowing(self._arrived)
            self.bytes_received += self._payload
        self._waiter.flowing(partial(MPI.Request.Testall, sends))
        return first

    def tell(self, kind: int, fields: tuple[float, ...], servers: int | None = None) -> None:
        """Sends a header that nobody answers to the first `servers` servers (all: None). Returns once it is out."""
        chosen = self._servers[:servers]
        for index, server in enumerate(chosen):
            pack(server.ask_view, (FORMAT, 0, kind, self._worker, index, 0, *fields))
            server.header_out.Start()
            self.bytes_sent += server.ask.nbytes
        for server in chosen:
            self._waiter.until(server.header_out.Test)

    def _read(self) -> Header:
        """Waits for every server's answer, as long as it takes."""
        first: Header | None = None
        for index, server in enumerate(self._servers):
            self._waiter.until(server.header_in.Test)
            header = unpack(server.answer_view, self._worker, index)
            if server.inline:
                server.params[:] = server.inline_in
            self.bytes_received += server.answer.nbytes
            if first is None:
                first, self.told = header, header.extra
                continue
            self.told |= header.extra
            if header.version != first.version:
                raise ContractError(
                    f"worker {self._worker}: torn read: server 0 sent version {first.version}, "
                    f"server {index} version {header.version}"
                )
        assert first is not None
        return first

    def close(self) -> None:
        """Frees all requests; what still waits is cancelled. Blocks for a moment at most."""
        close(self._receives, self._sends)
