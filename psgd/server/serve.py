"""A server's run: the loop, with its part of the checkpoints."""

from collections.abc import Callable

from psgd.checkpoint.saver import Saver
from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.mesh import Mesh
from psgd.server.policy import Policy
from psgd.server.server import Server
from psgd.server.server_transport import MpiServerTransport
from psgd.server.shard import Shard


def serve(
    mesh: Mesh,
    shard: Shard,
    part: range,
    size: int,
    transport: MpiServerTransport,
    strategy: Policy,
    metrics: RunMetrics,
    scale: Callable[[int], float] | None,
    saver: Saver,
) -> bool:
    """Serves until all workers are done. Blocks.

    Args:
        mesh: who is who.
        shard: the parameters it owns.
        part: which they are.
        size: of all parameters.
        transport: the wire.
        strategy: decides the order.
        metrics: told of every push, on server 0.
        scale: what a contribution of that staleness is multiplied by; None is 1.
        saver: of this rank.

    Returns:
        Whether the run was asked to save and stop, and has.
    """

    def save() -> None:
        saver.save(server.cut, server.leaving, state)

    def state() -> State:
        found = server.state()
        found.facts |= {"range": [part.start, part.stop, size], "cut": sorted(found.tensors)}
        found.tensors |= transport.arrays()
        return found

    server = Server(
        transport,
        shard,
        strategy,
        workers=mesh.workers,
        index=mesh.index,
        servers=mesh.servers,
        metrics=metrics,
        scale=scale,
        on_cut=save if saver.active else None,
        wanted=saver.wanted,
        on_start=None if saver.found is None else saver.recount,
    )
    if saver.found is not None:
        with saver.found.explained():
            tensors, facts, own = saver.parts(part)
            server.restore(tensors, facts)
            transport.restore({} if own is None else own.tensors, saver.pulled(part))
    server.run()
    return server.leaving
