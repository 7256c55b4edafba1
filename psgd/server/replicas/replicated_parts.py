"""What a server is made of where each shard is held twice."""

from collections.abc import Sequence
from typing import cast

from psgd.server.context import PushPullContext
from psgd.server.replicas.held_shards import HeldShards
from psgd.server.replicas.holders import Holders
from psgd.server.replicas.norm_exchange import NormExchange
from psgd.server.replicas.replicated_server_side import ReplicatedServerTransport
from psgd.server.shard import Shard
from psgd.server.transports.gradient_memory import Vector


def create(context: PushPullContext, gradients: Sequence[Vector | None]) -> tuple[Shard, ReplicatedServerTransport]:
    """Makes what this server holds, and its transport.

    Args:
        context: of the run.
        gradients: each worker's whole gradient where it can be read from here, else None.
    """

    def make(shard: int) -> Shard:
        part = context.shards[shard]
        params = context.params[part.start : part.stop]
        return Shard(params, context.server_optimizer, segment=context.segment, start=part.start)

    mesh = context.mesh
    shards = HeldShards(context.params, context.shards, make, mesh.index, Holders(mesh.servers))
    transport = ReplicatedServerTransport(mesh, shards, context.waiter, gradients, context.settings)
    if context.optimizer.clip_norm:
        transport.norms = NormExchange(mesh, transport.ended)
        shards.add_up = transport.norms.total
    return cast(Shard, shards), transport
