"""A worker's side of the wire over MPI: one exchange with all servers, in persistent requests made once.

Gradients are sent from the caller's vector and parameters received into it, with no copy between, except where a
shard is so small that it travels inside the header's message.
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.split import segments
from psgd.collectives.tags import Tag
from psgd.collectives.waiting import Waiter
from psgd.kernels.errors import ContractError, PeerLostError
from psgd.mesh import Mesh
from psgd.server import lost_message
from psgd.server_transport import INLINE_BYTES
from psgd.wire import FORMAT, HEADER_BYTES, Header, Kind, pack, unpack

Vector = NDArray[np.floating]


class _Server:
    """Buffers and requests for one server's shard."""

    def __init__(self, comm: MPI.Intracomm, rank: int, params: Vector, grads: Vector, segment: int) -> None:
        ranges = segments(params.size, segment)
        self.inline = 0 < params.nbytes <= INLINE_BYTES
        self.segments = len(ranges)
        self.params, self.grads = params, grads
        payload = params.nbytes if self.inline else 0
        self.ask = np.zeros(HEADER_BYTES + payload, np.uint8)
        self.answer = np.zeros(HEADER_BYTES + payload, np.uint8)
        self.inline_out = self.ask[HEADER_BYTES:].view(params.dtype)
        self.inline_in = self.answer[HEADER_BYTES:].view(params.dtype)
        self.header_out = comm.Send_init([self.ask, MPI.BYTE], rank, Tag.PUSH)
        self.header_in = comm.Recv_init([self.answer, MPI.BYTE], rank, Tag.REPLY)
        self.grads_out: list[MPI.Prequest] = []
        self.init_out: list[MPI.Prequest] = []
        self.params_in: list[MPI.Prequest] = []
        for part in ranges if not self.inline else ():
            view, grad = params[part.start : part.stop], grads[part.start : part.stop]
            self.grads_out.append(comm.Send_init([grad, MPI.BYTE], rank, Tag.GRADIENT))
            self.init_out.append(comm.Send_init([view, MPI.BYTE], rank, Tag.GRADIENT))
            self.params_in.append(comm.Recv_init([view, MPI.BYTE], rank, Tag.PARAMETERS))


class MpiWorkerTransport:
    """Pushes to all servers and takes their answers, as one blocking exchange.

    Args:
        mesh: who is who.
        params: the whole vector, overwritten by replies.
        grads: the whole gradient, of the same size and dtype; read while an exchange runs.
        shards: the servers' ranges.
        segment: elements in a segment.
        waiter: how to wait.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        grads: Vector,
        shards: Sequence[range],
        segment: int,
        waiter: Waiter,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._worker = mesh.index
        self._waiter = waiter
        self._servers = [
            _Server(
                mesh.world, mesh.server_rank(m), params[r.start : r.stop], grads[r.start : r.stop], segment
            )
            for m, r in enumerate(shards)
        ]
        answers = [r for s in self._servers for r in (s.header_in, *s.params_in)]
        asks = [s.header_out for s in self._servers]
        self._exchanges: dict[str, list[MPI.Prequest]] = {
            "none": answers + asks,
            "grads": answers + asks + [r for s in self._servers for r in s.grads_out],
            "params": asks + [r for s in self._servers for r in s.init_out],
        }
        self._answers, self._asks = answers, asks
        self._payload = sum(s.params.nbytes for s in self._servers if not s.inline)

    def exchange(self, kind: Kind, fields: tuple[float, ...], data: str) -> Header:
        """Sends a header (and data) to all servers and blocks until all have answered.

        Args:
            kind: what the header says.
            fields: the header's fields from `push` on.
            data: "grads" sends the gradient behind it, "params" the parameters (the first worker's start), "none"
                nothing.

        Returns:
            Server 0's answer; parameters are in place.

        Raises:
            PeerLostError: another worker left with an error.
            ContractError: shards with different versions: a torn read.
        """
        for index, server in enumerate(self._servers):
            pack(server.ask, (FORMAT, 0, kind, self._worker, index, server.segments, *fields))
            if server.inline and data != "none":
                server.inline_out[:] = server.grads if data == "grads" else server.params
            self.bytes_sent += server.ask.nbytes
        requests = self._exchanges[data]
        MPI.Prequest.Startall(requests)
        if data == "params":  # parameters are received where they are sent from: one after the other
            self._waiter.until(lambda: MPI.Request.Testall(requests))
            requests = self._answers
            MPI.Prequest.Startall(requests)
        if data != "none":
            self.bytes_sent += self._payload
        self._wait(requests)
        return self._read()

    def tell(self, kind: Kind, fields: tuple[float, ...], servers: int | None = None) -> None:
        """Sends a header that nobody answers to the first `servers` servers (all: None). Returns once it is out."""
        chosen = self._servers[:servers]
        for index, server in enumerate(chosen):
            pack(server.ask, (FORMAT, 0, kind, self._worker, index, 0, *fields))
            server.header_out.Start()
            self.bytes_sent += server.ask.nbytes
        for server in chosen:
            self._waiter.until(server.header_out.Test)

    def _wait(self, requests: list[MPI.Prequest]) -> None:
        """Waits for all requests; an answer that says ABORT ends the wait, since nothing follows it."""
        testall = MPI.Request.Testall
        spins = 0

        def done() -> bool:
            nonlocal spins
            if testall(requests):
                return True
            spins += 1
            return spins % 64 == 0 and self._aborted()

        self._waiter.until(done)

    def _aborted(self) -> bool:
        for index, server in enumerate(self._servers):
            if server.header_in.Get_status():
                header = unpack(server.answer, self._worker, index)
                if header.kind == Kind.ABORT:
                    raise PeerLostError(lost_message(header.extra))
        return False

    def _read(self) -> Header:
        first: Header | None = None
        for index, server in enumerate(self._servers):
            header = unpack(server.answer, self._worker, index)
            if header.kind == Kind.ABORT:
                raise PeerLostError(lost_message(header.extra))
            if server.inline:
                server.params[:] = server.inline_in
            self.bytes_received += server.answer.nbytes
            if first is None:
                first = header
            elif header.version != first.version:
                raise ContractError(
                    f"worker {self._worker}: torn read: server 0 sent version {first.version}, "
                    f"server {index} version {header.version}"
                )
        self.bytes_received += self._payload
        assert first is not None
        return first

    def close(self) -> None:
        """Frees all requests; receives that still wait are cancelled, sends are left to MPI. Does not block."""
        for request in self._answers:
            if not request.Test():
                request.Cancel()
                request.Wait()
            request.Free()
        for server in self._servers:
            for request in (server.header_out, *server.grads_out, *server.init_out):
                request.Free()
