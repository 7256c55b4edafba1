"""Reduce-scatter, all-gather and all-reduce round a ring: least bytes, most steps; for large arrays.

P ranks, S bytes. Reduce-scatter and all-gather take P - 1 steps each, in which a rank sends S less one chunk:
(P - 1)/P S where chunks are equal. All-reduce is both: 2 (P - 1) steps and 2 (P - 1)/P S (Patarasuk and Yuan, 2009).

Chunk: the part of the array that belongs to one rank at the end of the reduce-scatter; `parts` names all of them.
Rank r sends to r + 1 and receives from r - 1; what arrives is combined with its own values and sent on in the next
step. So chunk c is ((x[c+1] op x[c+2]) op ...) op x[c], ranks modulo P, and the all-gather copies those bits.

Segment: `segment` consecutive elements of a chunk, the last may be shorter. Segments are what is sent, and they travel
in groups of `AHEAD`, or fewer where they are long: a group does all P - 1 steps before the next one follows, so the
sums on their way fill 3 groups at most, whatever the array's size. While a segment is combined, the rest of its group
and the group of the next step come into receives that stand ready, and the last step of a group overlaps the first of
the next. A link stands still once a group is through and its rank has not been given a core meanwhile: 1 Gbit/s needs
4 ms for 512 KiB. So groups are rather large, `GROUP_BYTES`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.collectives.mpi.wait import Steps, Test

AHEAD = 16  # segments of a group at most
GROUP_BYTES = 2 * 1024 * 1024
_BANKS = 3  # one step is being received, one combined, one sent


def allreduce(channel: Channel, send: NDArray[Any], recv: NDArray[Any], op: Operation, segment: int) -> Steps:
    """Reduces over all ranks; the result has the same bits on all of them.

    Args:
        channel: the ranks.
        send: this rank's values, n elements; may be `recv`, else it is not changed.
        recv: n elements, for the result.
        op: the reduction; a mean is divided once, on each chunk's owner.
        segment: elements of a segment, at least 1.
    """
    parts = split(send.size, channel.size, max(1, ALIGN_BYTES // send.itemsize))
    own = parts[channel.rank]
    space = None if np.may_share_memory(send, recv) else recv
    yield from reduce_scatter(channel, send, recv[own.start : own.stop], parts, op, segment, space)
    yield from allgather(channel, recv, parts, segment)


def reduce_scatter(
    channel: Channel,
    send: NDArray[Any],
    recv: NDArray[Any],
    parts: Sequence[range],
    op: Operation,
    segment: int,
    space: NDArray[Any] | None = None,
) -> Steps:
    """Reduces over all ranks; each keeps its own chunk, finished if `op` is a mean.

    Args:
        channel: the ranks.
        send: this rank's values of all chunks; not changed where `recv` is not part of it.
        recv: `len(parts[rank])` elements, for the result; may be `send[parts[rank]]`.
        parts: the chunk of each rank: consecutive elements of `send`, of any lengths, also none.
        op: the reduction.
        segment: elements of a segment, at least 1.
        space: where sums on their way may land, each in its place: as long as `send`, apart from it, `recv` its own
            chunk. None takes memory of the channel, which costs the cache that much more.
    """
    own = parts[channel.rank]
    if channel.size == 1:
        recv[:] = send[own.start : own.stop]
        return
    length = min(segment, max(len(part) for part in parts))
    ahead = _ahead(parts, segment, send.itemsize)
    sums = channel.scratch("ring", 0 if space is not None else _BANKS * ahead * length, send.dtype)

    def landing(slot: int, cut: slice) -> NDArray[Any]:
        if space is not None:
            return space[cut]
        return sums[slot * length : slot * length + cut.stop - cut.start]

    def arrived(landed: NDArray[Any], cut: slice, last: bool) -> None:
        if not last:
            op.combine(landed, landed, send[cut])
            return
        out = recv[cut.start - own.start : cut.stop - own.start]
        op.combine(out, landed, send[cut])
        op.finish(out, channel.size)

    yield from _circulate(channel, parts, segment, ahead, 1, lambda cut: send[cut], landing, arrived)


def allgather(channel: Channel, recv: NDArray[Any], parts: Sequence[range], segment: int) -> Steps:
    """Gathers everyone's chunk on all ranks.

    Args:
        channel: the ranks.
        recv: all chunks; this rank's own is there on entry, the others are written.
        parts: the chunk of each rank: elements of `recv`, of any lengths, also none, that do not overlap.
        segment: elements of a segment, at least 1.
    """
    if channel.size > 1:
        ahead = _ahead(parts, segment, recv.itemsize)
        yield from _circulate(
            channel, parts, segment, ahead, 0, lambda cut: recv[cut], lambda slot, cut: recv[cut], lambda *arrived: None
        )


def _ahead(parts: Sequence[range], segment: int, itemsize: int) -> int:
    """Segments of a group, the same on all ranks: at least 2 where chunks are as long, so that one is under way."""
    there = -(-max(len(part) for part in parts) // segment)
    return max(1, min(AHEAD, there, max(2, GROUP_BYTES // (segment * itemsize))))


def _circulate(
    channel: Channel,
    parts: Sequence[range],
    segment: int,
    ahead: int,
    first: int,
    mine: Callable[[slice], NDArray[Any]],
    landing: Callable[[int, slice], NDArray[Any]],
    arrived: Callable[[NDArray[Any], slice, bool], None],
) -> Steps:
    """Sends chunks round: rank r starts with chunk r - first and then sends on what it has received.

    Steps are counted through all groups. A slot is the place of one segment of a step, and there are slots for three
    steps, so before a receive is posted its slot's last send is waited for. That send belongs to an earlier step than
    the one that this rank is in, as does everything else that it ever waits for: so the rank that is behind all others
    can always continue, and nothing can deadlock.

    Args:
        channel: at least 2 ranks.
        parts: the chunk of each rank.
        segment: elements of a segment.
        ahead: segments of a group.
        first: see above.
        mine: this rank's own values of some elements.
        landing: where some elements are received, by slot.
        arrived: called with what was received, which elements these are, and whether this is the chunk's last step.
    """
    rank, steps = channel.rank, channel.size - 1
    left, right = (rank - 1) % channel.size, (rank + 1) % channel.size
    total = steps * max(1, -(-max(len(part) for part in parts) // (segment * ahead)))
    receiving: list[tuple[Test, NDArray[Any], slice] | None] = [None] * (_BANKS * ahead)
    sending: list[Test | None] = [None] * (_BANKS * ahead)
    cut_of = _cuts(parts, segment, ahead, rank, steps)

    # Step -1 only prepares step 0: it posts the first receives and sends this rank's own values.
    for step in range(-1, total):
        here, there = step % _BANKS * ahead, (step + 1) % _BANKS * ahead
        # Receives of the next step are posted before this one is waited for: the neighbour may be a step ahead.
        for i in range(ahead if step + 1 < total else 0):
            if (sent := sending[there + i]) is not None:
                yield sent
                sending[there + i] = None
            if (cut := cut_of(step + 1, first + 1, i)) is not None:
                into = landing(there + i, cut)
                receiving[there + i] = channel.receive(left, into), into, cut
        # Each segment is combined and sent on as soon as it is there, while the ones behind it are still on their way.
        for i in range(ahead):
            came = receiving[here + i]
            if came is not None:
                yield came[0]
                arrived(came[1], came[2], (step + 1) % steps == 0)
                receiving[here + i] = None
            if step + 1 < total and (cut := cut_of(step + 1, first, i)) is not None:
                data = came[1] if came is not None and (step + 1) % steps else mine(cut)
                sending[here + i] = channel.send(right, data)
    for sent in sending:
        if sent is not None:
            yield sent


def _cuts(
    parts: Sequence[range], segment: int, ahead: int, rank: int, steps: int
) -> Callable[[int, int, int], slice | None]:
    """Which elements travel when: a function of the step, of the chunk's distance behind this rank, and of the number.

    Args:
        parts: the chunk of each rank.
        segment: elements of a segment.
        ahead: segments of a group.
        rank: this one.
        steps: of a group, P - 1.
    """

    def cut_of(step: int, back: int, i: int) -> slice | None:
        group, hop = divmod(step, steps)
        part = parts[(rank - hop - back) % len(parts)]
        start = part.start + (group * ahead + i) * segment
        if start < part.stop:
            return slice(start, min(part.stop, start + segment))
        return slice(part.start, part.start) if step == i == 0 else None  # peers check each other's first message

    return cut_of
