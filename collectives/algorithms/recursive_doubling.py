"""All-reduce by recursive doubling: fewest steps, most bytes; for small arrays.

P ranks, S bytes, p the largest power of two up to P. log2 p steps, in each of which a rank sends S bytes to a partner
and gets as much. Where P > p, P - p pairs of neighbours become one (see `folding`): two more steps, S bytes in all for
the one, (1 + log2 p) S for the other.

Blocks: after k steps a rank holds the sum of a block of consecutive ranks, and its next partner that of the block
beside it. Both combine the two with the lower ranks' block first, so all ranks compute the same bits.
"""

from typing import Any

from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.algorithms.folding import Folding
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.wait import Steps


def allreduce(channel: Channel, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> Steps:
    """Reduces over all ranks; the result has the same bits on all of them.

    Args:
        channel: the ranks.
        send: this rank's values, n elements; may be `recv`, else it is not changed.
        recv: n elements, for the result.
        op: the reduction.
    """
    folding = Folding(channel.rank, channel.size)
    came = channel.scratch("recursive_doubling", send.size, send.dtype)
    mine = yield from folding.before(channel, send, recv, came, op)
    if mine is not None:
        for bit in folding.bits:
            partner = folding.partner(bit)
            received = channel.receive(partner, came)
            yield channel.send(partner, mine)
            yield received
            lower, upper = (came, mine) if folding.place & bit else (mine, came)
            op.combine(recv, lower, upper)
            mine = recv
        if mine is not recv:
            recv[:] = mine
        op.finish(recv, channel.size)
    yield from folding.after(channel, recv)
