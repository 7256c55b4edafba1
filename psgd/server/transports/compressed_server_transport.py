"""A server's side of encoded pushes and pulls, whose form is that of `compressed_worker_transport.py`.

For each worker the server keeps what that worker has of the shard, to the bit: an answer encodes the difference to
the parameters as they are now, so what an answer leaves out is in the next one's difference. Memory for each worker:
that and its decoded gradient, two shards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore
from psgd.checkpoint.state import State
from psgd.compression.options import Compression
from psgd.kernels.errors import ContractError
from psgd.server.context import PushPullContext
from psgd.server.transports.payloads import Payloads
from psgd.server.transports.server_transport import MpiServerTransport
from psgd.server.wire import HEADER_BYTES, WHOLE, Header, MessageKind

Vector = NDArray[np.floating]
_REPORT = int(MessageKind.REPORT)


class _Copy:
    """What a server knows of one worker.

    Attributes:
        payload_bytes: what followed its newest push, as its header said.
        answered_whole: the present answer to it has whole parameters.
        params: the shard as that worker has it.
        gradient: its newest, decoded.
    """

    def __init__(self, params: Vector, payloads: Payloads) -> None:
        self.payload_bytes = WHOLE
        self.answered_whole = True
        self.params, self.gradient = np.empty_like(params), np.empty_like(params)
        self.payloads = payloads


class CompressedServerTransport(MpiServerTransport):
    """Implements `psgd.server.transport.ServerTransport`."""

    def __init__(
        self,
        context: PushPullContext,
        compression: Compression,
        params: Vector,
        ranges: Sequence[range],
        follows: bool = False,
    ) -> None:
        settings = context.settings
        super().__init__(context.mesh, params, ranges, context.waiter, follows=follows, inline=False, settings=settings)
        self.encodes(context, compression)

    def encodes(self, context: PushPullContext, compression: Compression) -> None:
        """Once, at first: how workers and this server compress. The transport is made without `inline`."""
        mesh, params = context.mesh, self._params
        self._header = b""
        self._copies: list[_Copy] = []
        if params.size:
            self._codec = compression.codec(params.size, params.dtype, mesh.workers)
            self._difference = np.zeros_like(params)
            self._codec.warm_up()
            sizes = compression.codec(params.size, params.dtype).max_nbytes(), self._codec.max_nbytes()
            ranks = [mesh.worker_rank(w) for w in range(mesh.workers)]
            self._copies = [_Copy(params, Payloads(mesh.world, rank, *sizes)) for rank in ranks]
            for copy in self._copies:
                copy.payloads.expect()

    def _receive(self, worker: int) -> None:
        super()._receive(worker)
        header = self._events[-1]
        if self._copies and isinstance(header, Header) and header.kind != _REPORT:
            self._copies[worker].payload_bytes = header.payload_bytes

    def fetch(self, worker: int, segment: int) -> Vector:
        copy = self._copies[worker]
        if copy.payload_bytes == WHOLE:
            return super().fetch(worker, segment)
        if segment == 0:
            self._waiter.flowing(copy.payloads.arrived)
            payload = copy.payloads.payload
            if payload.size != copy.payload_bytes:
                raise ContractError(
                    f"worker {worker} announced a payload of {copy.payload_bytes} bytes, sent {payload.size}"
                )
            copy.gradient.fill(0)
            self._codec.decode_add(payload, copy.gradient)
            self.bytes_received += payload.size
            self._expect(worker)
        part = self._ranges[segment]
        return copy.gradient[part.start : part.stop]

    def _expect(self, worker: int) -> None:
        """The worker's payload was read, and the next may come."""
        self._copies[worker].payloads.expect()

    def _of(self, workers: Sequence[int], whole: bool) -> list[int]:
        """Those that the present reply answers with whole parameters, or with payloads."""
        return [worker for worker in workers if (not self._copies or self._copies[worker].answered_whole) == whole]

    def reply(self, workers: Sequence[int], header: Header) -> None:
        self._header = bytes(header)
        for worker in workers if self._copies else ():
            copy = self._copies[worker]
            copy.answered_whole = header.kind == MessageKind.END or copy.payload_bytes == WHOLE
        super().reply(self._of(workers, True), header)

    def emit(self, workers: Sequence[int], segment: int) -> None:
        # Whole parameters go out segment by segment, as without compression. A difference is encoded at once, so it
        # waits until the last segment has its final values.
        whole, part = self._of(workers, True), self._ranges[segment]
        super().emit(whole, segment)
        for worker in whole:
            self._copies[worker].params[part.start : part.stop] = self._params[part.start : part.stop]
        if segment == len(self._ranges) - 1:
            for worker in self._of(workers, False):
                self._send_difference(worker)

    def _send_difference(self, worker: int) -> None:
        link, copy, codec = self._links[worker], self._copies[worker], self._codec
        self._waiter.until(copy.payloads.sent)
        np.subtract(self._params, copy.params, out=self._difference)
        codec.residual.fill(0)  # the difference has it
        nbytes = codec.encode(self._difference, copy.payloads.out)
        if nbytes == 0:
            raise ContractError(
                f"the parameters for worker {worker} are not finite: lower the learning rate, or use clip_norm"
            )
        codec.decode_add(copy.payloads.out[:nbytes], copy.params)
        self._waiter.until(link.header_out.Test)
        link.outgoing_bytes[:] = self._header
        link.outgoing.worker = worker
        for request in link.turn:
            request.Start()
        copy.payloads.send(nbytes)
        self.bytes_sent += HEADER_BYTES + nbytes

    def arrays(self) -> dict[str, NDArray[Any]]:
        found = self._codec.arrays() if self._copies else {}
        # The residual is computed anew for each answer.
        return {f"down.{name}": array for name, array in found.items() if name != "residual"}

    def restore(self, arrays: Mapping[str, NDArray[Any]], pulled: Mapping[int, Vector]) -> None:
        saved = State(dict(arrays))
        restore.put_back({name: array for name, array in self.arrays().items() if name in arrays}, saved)
        for worker, shard in pulled.items() if self._copies else ():
            restore.put_back({"pulled": self._copies[worker].params}, State({"pulled": shard}))

    def drain(self) -> None:
        super().drain()
        for copy in self._copies:
            self._waiter.until(copy.payloads.sent)

    def close(self) -> None:
        for copy in self._copies:
            copy.payloads.close()
        super().close()
