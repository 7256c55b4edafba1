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
    alone, plain = context.mesh.servers == 1, context.compression is None
    kind = SurvivingServerTransport if alone else AgreedServerTransport
    if not plain:
        from psgd.server.surviving import coded_server_side  # what few runs need

        kind = coded_server_side.CodedServerTransport if alone else coded_server_side.AgreedCodedServerTransport
    made = kind(context.mesh, params, ranges, context.waiter, grads=grads, settings=context.settings, inline=plain)
    if context.compression is not None:
        assert isinstance(made, coded_server_side.CodedServerTransport)
        made.encodes(context, context.compression)
    return made
