"""What is saved at a checkpoint in the place of dead servers: by who answers for their shards."""

from collections.abc import Callable

from psgd.checkpoint.state import State, Stead
from psgd.server.replicas.replicated_server import ReplicatedServer


def of(server: ReplicatedServer, index: int, placed: Callable[[State, int], State]) -> Stead:
    """The parts of all dead servers.

    Args:
        server: this one.
        index: its.
        placed: adds to the state of a shard where it belongs.
    """
    holders = server.holders
    writers = {shard: holders.of(shard)[0] for shard in sorted(holders.lost)}
    return Stead(
        {f"server-{shard}": writer for shard, writer in writers.items()},
        {
            f"server-{shard}": placed(server.state_of(shard), shard)
            for shard, writer in writers.items()
            if writer == index
        },
    )
