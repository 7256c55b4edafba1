"""A worker's buffers and requests for one server that holds several shards, which may become others."""

from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.tags import Tag
from psgd.server.context import PushPullContext
from psgd.server.replicas.holders import Holders
from psgd.server.transports.gradient_memory import Vector
from psgd.server.transports.mailbox import Mailbox


class HoldingServerLink(Mailbox):
    """The server gets the gradient of all that it holds, and answers for some of it; nothing travels inline.

    Args:
        context: of the run.
        server: its index.
        grads: the whole gradient.
        shared: the server reads it where it lies.

    Attributes:
        server: its index.
        bits: the dead servers that it knew of when it answered last: it holds shards accordingly.
    """

    def __init__(self, context: PushPullContext, server: int, grads: Vector, shared: bool) -> None:
        mesh = context.mesh
        super().__init__(
            mesh.world,
            mesh.server_rank(server),
            context.params,
            incoming=Tag.REPLY,
            outgoing=Tag.PUSH,
            inline=False,
            shared=shared,
            settings=context.settings,
        )
        self.server, self.bits = server, -1
        self._context, self._grads, self._shared = context, grads, shared
        self.grads_out: list[MPI.Prequest] = []
        self.params_in: list[MPI.Prequest] = []
        self._awaited = 0  # of the parameters' receives, the first ones
        self.hold(0)

    def hold(self, bits: int) -> None:
        """The server holds what it does when those are dead. No gradient is on its way."""
        if bits == self.bits:
            return
        close([], self.grads_out)
        self.bits, context = bits, self._context
        comm, rank = context.mesh.world, context.mesh.server_rank(self.server)
        holders = Holders.of_bits(context.mesh.servers, bits)
        self.grads_out = []
        # What it has answered for so far stays in front, and may be awaited already.
        for part in self._ranges(holders.answered_by(self.server))[len(self.params_in) :]:
            self.params_in.append(comm.Recv_init([context.params[part], MPI.BYTE], rank, Tag.PARAMETERS))
        for part in () if self._shared else self._ranges(holders.held_by(self.server)):
            self.grads_out.append(comm.Send_init([self._grads[part], MPI.BYTE], rank, Tag.GRADIENT))

    def _ranges(self, shards: list[int]) -> list[slice]:
        context = self._context
        parts = [context.shards[shard] for shard in shards]
        return [
            slice(part.start + r.start, part.start + r.stop)
            for part in parts
            for r in segments(len(part), context.segment)
        ]

    def sent(self) -> bool:
        """Whether all that was sent is out. Does not block."""
        return MPI.Request.Testall([self.header_out, *self.grads_out])

    def expect(self) -> None:
        """Starts what receives the parameters, of that what is not awaited yet. Ends with `arrived`."""
        if len(self.params_in) > self._awaited:
            MPI.Prequest.Startall(self.params_in[self._awaited :])
            self._awaited = len(self.params_in)

    def arrived(self) -> bool:
        """Whether the parameters are here. Does not block."""
        if not self.params_in or MPI.Request.Testall(self.params_in):
            self._awaited = 0
        return not self._awaited
