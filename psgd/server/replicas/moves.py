"""Shards on their way between servers: to new holders, and at the end to all."""

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.tags import Tag
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.deaths import means_death
from psgd.server.replicas.held_shards import HeldShards
from psgd.server.replicas.holders import Holders, Move

Wait = Callable[[int, MPI.Request], bool]
"""Returns once a request with that server has ended, whether well; or false if the server is dead. Blocks."""


def carry_out(moves: Sequence[Move], shards: HeldShards, mesh: Mesh, wait: Wait) -> list[Move]:
    """Sends and receives what this server has to. All living servers do this at the same place in the order; blocks.

    Args:
        moves: all of them.
        shards: this server's.
        mesh: who is who.
        wait: for a request.

    Returns:
        What did not come, since the source has died too.
    """
    under_way: list[tuple[Move, int, MPI.Request | None]] = []
    for move in moves:
        if mesh.index == move.source:
            tensors, other = shards.state(move.shard).tensors, move.target
        elif mesh.index == move.target:
            tensors, other = shards.add_shard(move.shard).tensors, move.source
        else:
            continue
        under_way += [(move, other, _begin(array, mesh, move, other)) for _, array in sorted(tensors.items())]
    failed = [move for move, other, request in under_way if request is None or not wait(other, request)]
    return [move for move in failed if move.target == mesh.index]


def share(params: NDArray[np.floating], parts: Sequence[range], holders: Holders, mesh: Mesh, wait: Wait) -> bool:
    """Every server gets all shards, each from the one that answers for it. All living servers do this; blocks.

    Returns:
        Whether all is here.
    """
    under_way: list[tuple[int, MPI.Request | None]] = []
    for shard, part in enumerate(parts):
        source, *_ = holders.of(shard)
        for target in holders.living:
            if target not in holders.of(shard) and mesh.index in (source, target):
                other = target if mesh.index == source else source
                move = Move(shard, source, target)
                under_way.append((other, _begin(params[part.start : part.stop], mesh, move, other)))
    failed = [other for other, request in under_way if request is None or not wait(other, request)]
    return not failed


def _begin(array: NDArray[np.generic], mesh: Mesh, move: Move, other: int) -> MPI.Request | None:
    """Sends or receives an array; None where the other server is known to be dead."""
    comm, message = mesh.world, [array.view(np.uint8), MPI.BYTE]
    begin = comm.Isend if mesh.index == move.source else comm.Irecv
    try:
        return begin(message, mesh.server_rank(other), Tag.REPLICA)
    except MPI.Exception as error:
        if not means_death(error):
            raise
        return None
