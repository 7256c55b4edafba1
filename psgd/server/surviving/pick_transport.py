"""Which transport a server has in a run that survives deaths: alone, or one of several."""

from collections.abc import Sequence

from psgd.server.context import PushPullContext
from psgd.server.surviving.agreed_server_side import AgreedServerTransport
from psgd.server.surviving.server_side import SurvivingServerTransport
from psgd.server.transports.gradient_memory import Vector


def transport(
    context: PushPullContext, params: Vector, ranges: Sequence[range], grads: Sequence[Vector | None]
) -> SurvivingServerTransport:
    """Makes this server's.

    Args:
        context: of the run.
        params: this server's shard.
        ranges: its segments.
        grads: of each worker, what lies in memory that is read here, else None.
    """
    kind = SurvivingServerTransport if context.mesh.servers == 1 else AgreedServerTransport
    return kind(context.mesh, params, ranges, context.waiter, grads=grads, settings=context.settings)
