"""All-reduce by recursive halving and doubling (Rabenseifner, 2004): few steps and few bytes, for arrays in between.

P ranks, S bytes, p the largest power of two up to P. A reduce-scatter by recursive halving, then an all-gather by
recursive doubling: 2 log2 p steps, in which a rank sends 2 (p - 1)/p S bytes where p parts are equal. Where P > p,
P - p pairs of neighbours become one (see `folding`): two more steps, S bytes in all for the one, S more for the other.

Window: the elements that a rank is still busy with, at first all. In each step of the first half two partners share
one; each sends the half that the other keeps, combines what it keeps, lower place first, and continues with that. In
the second half the same steps run backward, and the windows grow with finished results. So each element is reduced on
one rank, and its bits are copied from there to all.
"""

from typing import Any

from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.algorithms.folding import Folding
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.collectives.mpi.wait import Steps


def allreduce(channel: Channel, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> Steps:
    """Reduces over all ranks; the result has the same bits on all of them.

    Args:
        channel: the ranks.
        send: this rank's values, n elements, n also smaller than P; may be `recv`, else it is not changed.
        recv: n elements, for the result.
        op: the reduction.
    """
    folding = Folding(channel.rank, channel.size)
    came = channel.scratch("rabenseifner", send.size, send.dtype)
    mine = yield from folding.before(channel, send, recv, came, op)
    if mine is not None:
        yield from _exchange(channel, folding, mine, recv, came, op)
    yield from folding.after(channel, recv)


def _exchange(
    channel: Channel, folding: Folding, mine: NDArray[Any], recv: NDArray[Any], came: NDArray[Any], op: Operation
) -> Steps:
    """Reduces over the places. `mine` is a rank's values, perhaps in `recv`; `came` has room for as many."""
    parts = split(recv.size, folding.places, max(1, ALIGN_BYTES // recv.itemsize))

    def window(place: int, width: int) -> slice:
        """Of the parts, those from `place` on, `width` of them, aligned."""
        first = place & -width
        return slice(parts[first].start, parts[first + width - 1].stop)

    for bit in reversed(folding.bits):
        partner, keep, give = folding.partner(bit), window(folding.place, bit), window(folding.place ^ bit, bit)
        into = came[: keep.stop - keep.start]
        received = channel.receive(partner, into)
        sent = channel.send(partner, mine[give])
        yield received
        lower, upper = (into, mine[keep]) if folding.place & bit else (mine[keep], into)
        op.combine(recv[keep], lower, upper)
        yield sent
        mine = recv
    if mine is not recv:
        recv[:] = mine
    op.finish(recv[window(folding.place, 1)], channel.size)
    for bit in folding.bits:
        partner, have, want = folding.partner(bit), window(folding.place, bit), window(folding.place ^ bit, bit)
        received = channel.receive(partner, recv[want])
        yield channel.send(partner, recv[have])
        yield received
