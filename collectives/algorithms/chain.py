"""Broadcast along a chain, pipelined: fewest bytes a rank; for large arrays.

P ranks, S bytes in k segments. Rank by rank from the root, each sends S bytes to the next, the last none: P - 2 + k
steps of one segment each, so about the time of S bytes where k is much larger than P.

Segment: `segment` consecutive elements, the last may be shorter. Each is sent on as soon as it is there, while the next
ones are on their way into receives that stand ready at their places in the array.
"""

from collections import deque
from typing import Any

from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.wait import Steps, Test

AHEAD = 4  # receives that stand ready, and sends on their way


def bcast(channel: Channel, data: NDArray[Any], root: int, segment: int) -> Steps:
    """Copies the root's array to all ranks.

    Args:
        channel: the ranks.
        data: n elements: read on the root, written on the others.
        root: the rank that has them.
        segment: elements of a segment, at least 1.
    """
    rank, size = channel.rank, channel.size
    place = (rank - root) % size
    cuts = segments(data.size, segment) or [range(0)]  # an empty array is a message too: neighbours check each other
    pieces = [data[cut.start : cut.stop] for cut in cuts]
    left, right = (rank - 1) % size, (rank + 1) % size
    receiving: deque[Test] = deque()
    sending: deque[Test] = deque()
    if place:
        receiving.extend(channel.receive(left, piece) for piece in pieces[:AHEAD])
    for i, piece in enumerate(pieces):
        if place:
            yield receiving.popleft()
            if i + AHEAD < len(pieces):
                receiving.append(channel.receive(left, pieces[i + AHEAD]))
        if place < size - 1:
            if len(sending) == AHEAD:
                yield sending.popleft()
            sending.append(channel.send(right, piece))
    yield from sending
