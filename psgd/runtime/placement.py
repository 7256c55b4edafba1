"""Which ranks serve: decided on rank 0 from who is on which node, and broadcast to all.

Server 0 is always rank 0. `dedicated`: the first ranks. `spread`: one a node, in turn, so that no node's link carries
all pushes. `colocated`: evenly among the workers of all nodes, so that each node has servers in proportion to its
ranks. `auto`: `dedicated` on one node, `spread` on several.
"""

from collections.abc import Sequence

from mpi4py import MPI

from psgd.kernels.errors import UsageError
from psgd.runtime.agreement import broadcast, gather
from psgd.runtime.choices import PLACEMENT
from psgd.runtime.launcher_env import node_name, refuse_alone


def choose(nodes: Sequence[str], servers: int, placement: str = "auto") -> list[int]:
    """The ranks that serve, server 0 first.

    Args:
        nodes: the node of each rank.
        servers: how many serve, fewer than there are ranks.
        placement: a name of `choices.PLACEMENT`.
    """
    groups: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        groups.setdefault(node, []).append(rank)
    if placement == "auto":
        placement = "spread" if len(groups) > 1 else "dedicated"
    if placement == "dedicated":
        return list(range(servers))
    if placement == "spread":
        deepest = max(map(len, groups.values()))
        in_turn = [ranks[turn] for turn in range(deepest) for ranks in groups.values() if turn < len(ranks)]
        return in_turn[:servers]
    by_node = [rank for ranks in groups.values() for rank in ranks]
    return [by_node[k * len(by_node) // servers] for k in range(servers)]


def index(rank: int, serving: Sequence[int]) -> int:
    """The number of a rank within its role: as a server, or among the workers, who count in rank order."""
    return serving.index(rank) if rank in serving else rank - sum(server < rank for server in serving)


def agree(comm: MPI.Intracomm, servers: int, placement: str | Sequence[int] = "auto") -> list[int]:
    """The ranks of `comm` that serve, the same on all ranks: rank 0's choice. Collective, blocks.

    Args:
        comm: all ranks of the run.
        servers: how many serve.
        placement: a name of `choices.PLACEMENT`, or the ranks themselves.

    Raises:
        AloneError: this rank has been started as one of several, and is alone.
    """
    refuse_alone()
    if servers == 0 or not isinstance(placement, str):
        return [] if isinstance(placement, str) else [int(rank) for rank in placement]
    nodes = [each["node"] for each in gather(comm, {"node": node_name()})]
    ranks: list[int] = broadcast(comm, {"servers": choose(nodes, servers, placement)})["servers"]
    return ranks


def checked(placement: object, servers: int, size: int) -> str | list[int]:
    """A placement of so many servers among so many ranks: a name, or the ranks.

    Raises:
        UsageError: it says what was expected.
    """
    if isinstance(placement, str):
        if placement not in PLACEMENT.names:
            raise UsageError(
                f"placement: expected one of {', '.join(PLACEMENT.names)}, or the servers' ranks, got {placement!r}"
            )
        return placement
    try:
        ranks = [int(rank) for rank in placement]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise UsageError(f"placement: expected a name or the servers' ranks, got {placement!r}") from None
    if (
        len(ranks) != servers
        or len(set(ranks)) != servers
        or ranks[:1] not in ([], [0])
        or not all(0 <= rank < size for rank in ranks)
    ):
        raise UsageError(f"placement: expected {servers} different ranks of {size}, starting with 0, got {ranks}")
    return ranks
