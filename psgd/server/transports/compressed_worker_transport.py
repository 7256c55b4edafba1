"""A worker's side of encoded pushes and pulls.

What a push or a pull does not say stays with its sender for a later one. A push's header says in `payload_bytes` what
follows: the bytes of a payload, `WHOLE` for the gradient as it is, `NOTHING` for a push without samples. The answer has
the same form.
"""

import numpy as np
from numpy.typing import NDArray

from psgd.compression.options import Compression
from psgd.server.context import PushPullContext
from psgd.server.transports.payloads import Payloads
from psgd.server.transports.worker_transport import MpiWorkerTransport
from psgd.server.wire import NOTHING, WHOLE, Header, MessageKind

Vector = NDArray[np.floating]


class _Shard:
    """One server's shard of the vectors, its codec, and the payloads to and from that server."""

    def __init__(self, context: PushPullContext, compression: Compression, grads: Vector, server: int) -> None:
        mesh, part = context.mesh, context.shards[server]
        self.server = server
        self.part = slice(part.start, part.stop)
        self.grads, self.params = grads[self.part], context.params[self.part]
        self.codec = compression.codec(self.grads.size, grads.dtype)
        incoming = compression.codec(self.grads.size, grads.dtype, mesh.workers).max_nbytes()
        self.payloads = Payloads(mesh.world, mesh.server_rank(server), incoming, self.codec.max_nbytes())


class CompressedWorkerTransport(MpiWorkerTransport):
    """Exchanges payloads, or whole vectors as `MpiWorkerTransport`.

    Attributes:
        coded: the shards that have elements.
        whole: the next exchange is of whole vectors. A worker's last one is in any case.
        pulled: the parameters before the answer with the newest checkpoint, where that was a payload.
    """

    def __init__(self, context: PushPullContext, compression: Compression, grads: Vector) -> None:
        super().__init__(context, grads, inline=False)
        self.whole = True
        self.pulled = context.params[:0]
        self.coded = [_Shard(context, compression, grads, m) for m, part in enumerate(context.shards) if part]
        self._params, self._checkpoints = context.params, 0

    def exchange(self, kind: int, with_grads: bool, with_params: bool = True) -> Header:
        """As there; of payloads, `with_grads` says that there is a gradient, which must be finite.

        Raises:
            CodecError: an answer is damaged.
        """
        if self.whole or kind == MessageKind.DONE:
            answer = super().exchange(kind, with_grads)
            self._checkpoints = answer.checkpoints
            return answer
        for link in self._links:
            link.payload_bytes = NOTHING
        for shard in self.coded:
            shard.payloads.expect()
        for shard in self.coded if with_grads else ():
            nbytes = shard.codec.encode(shard.grads, shard.payloads.out)
            self._links[shard.server].payload_bytes = nbytes
            shard.payloads.send(nbytes)
            self.bytes_sent += nbytes
        answer = super().exchange(kind, with_grads=False, with_params=False)
        for link in self._links:
            link.payload_bytes = WHOLE
        # A run that resumes from a checkpoint gets this answer again, so what is saved is from before it.
        if answer.checkpoints > self._checkpoints:
            self._checkpoints, self.pulled = answer.checkpoints, self._params.copy()
        for shard in self.coded:
            self._waiter.flowing(shard.payloads.arrived)
            payload = shard.payloads.payload
            shard.codec.decode_add(payload, shard.params)
            self.bytes_received += payload.size
        for shard in self.coded:
            self._waiter.flowing(shard.payloads.sent)
        return answer

    def compile(self) -> None:
        """Compiles what a push needs, on codecs of their own, so that no step waits for it."""
        for shard in self.coded[:1]:
            shard.codec.warm_up()

    def add_residuals(self) -> None:
        """Adds to the gradients what the codecs have kept, so that a whole push says all."""
        for shard in self.coded:
            shard.codec.send_whole(shard.grads)

    def close(self) -> None:
        for shard in self.coded:
            shard.payloads.close()
        super().close()
