"""Broadcast and reduction along a binomial tree: fewest steps; for small arrays.

P ranks, S bytes. ceil(log2 P) steps and P - 1 messages of S bytes in all. In a broadcast the root sends
ceil(log2 P) S bytes, a rank at the tree's end none; in a reduction every rank but the root sends S once.

Blocks of the reduction: ranks are merged in aligned blocks of 2, 4, 8, ... ranks, lower half first. A block's values
gather on the root if it is in the block, else on the block's lowest rank. So the order of all operations follows from
the ranks alone, and the result has the same bits in every run and on every root.
"""

from typing import Any

from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.wait import Steps


def bcast(channel: Channel, data: NDArray[Any], root: int) -> Steps:
    """Copies the root's array to all ranks.

    Args:
        channel: the ranks.
        data: n elements: read on the root, written on the others.
        root: the rank that has them.
    """
    size = channel.size
    place = (channel.rank - root) % size
    bit = 1 << (size - 1).bit_length() if place == 0 else place & -place
    if place:
        yield channel.receive((place - bit + root) % size, data)
    sends = []
    while bit := bit >> 1:
        if place + bit < size:  # the farthest first: it has the most below it
            sends.append(channel.send((place + bit + root) % size, data))
    yield from sends


def reduce(channel: Channel, send: NDArray[Any], recv: NDArray[Any] | None, op: Operation, root: int) -> Steps:
    """Reduces over all ranks; the root keeps the result.

    Args:
        channel: the ranks.
        send: this rank's values, n elements; on the root it may be `recv`, else it is not changed.
        recv: n elements for the result on the root, None elsewhere.
        op: the reduction.
        root: the rank that gets the result.
    """
    rank, size = channel.rank, channel.size
    mine, came = send, send[:0]
    bit = 1
    while bit < size:
        other = (rank & -bit) ^ bit  # the lowest rank of the block beside this rank's
        if other < size:
            rooted = other <= root < other + bit
            peer = root if rooted else other
            if rooted or (rank != root and other < rank):
                yield channel.send(peer, mine)
                return
            if recv is None:
                recv = channel.scratch("binomial sum", send.size, send.dtype)
            came = came if came.size else channel.scratch("binomial", send.size, send.dtype)
            yield channel.receive(peer, came)
            lower, upper = (came, mine) if other < rank else (mine, came)
            op.combine(recv, lower, upper)
            mine = recv
        bit *= 2
    if recv is not None:  # the root: all others have sent
        if mine is not recv:
            recv[:] = mine
        op.finish(recv, size)
