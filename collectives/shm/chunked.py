"""Small reductions of several ranks: as inline, but each rank combines a chunk only, and the others copy that.

The results of a chunk go behind its owner's descriptor, over its own values: no other rank reads those. Two descriptors
take turns as they do for inline data.

Cost a rank, for P ranks and S bytes: 2 (P - 1)/P S read from other ranks' caches, where inline reads (P - 1) S, for a
second wait.
"""

from psgd.collectives.mpi.split import ALIGN_BYTES
from psgd.collectives.shm import layout
from psgd.collectives.shm.inline import combine_behind
from psgd.collectives.shm.steps import (
    after,
    ask_for,
    ask_for_steps,
    descriptor,
    descriptor_in,
    memcpy,
    put,
    reached,
    word,
)
from psgd.kernels.jit import part


@part
def start_of(node: int, call: int, rank: int) -> int:
    """The first byte of a rank's chunk; of the rank behind the last one, the number of bytes."""
    size, nbytes = word(node, layout.SIZE), word(call, layout.COUNT) * word(call, layout.ITEM)
    lines = (nbytes + ALIGN_BYTES - 1) // ALIGN_BYTES
    return min(nbytes, ALIGN_BYTES * (rank * (lines // size) + min(rank, lines % size)))


@part
def reduce(node: int, state: int, call: int) -> None:
    """Combines this rank's chunk of what is behind all descriptors, and puts it behind its own."""
    me, item, root = word(node, layout.RANK), word(call, layout.ITEM), word(call, layout.ROOT)
    start = start_of(node, call, me)
    nbytes = start_of(node, call, me + 1) - start
    if nbytes > 0:
        # Not at once behind the descriptor: there this rank's own values are operands, not always the first ones.
        to = word(call, layout.INTO) + start if root in (-1, me) else word(node, layout.SCRATCH)
        combine_behind(node, state, call, to, start, nbytes // item)
        memcpy(descriptor(node, state, me) + layout.DESCRIPTOR_BYTES + start, to, nbytes)


@part
def take(node: int, state: int, call: int, spins: int) -> int:
    """Copies the other ranks' chunks, all of which are there once their owners have taken this rank's step.

    Returns:
        DONE or WAIT.
    """
    size, number = word(node, layout.SIZE), word(state, layout.CALLS) - 1  # the call is counted already
    for i in range(max(1, word(state, layout.PEER)), size):
        rank = after(node, i)
        if not reached(node, rank, word(state, layout.STEP), spins):
            put(state, layout.PEER, i)
            return layout.WAIT
        ask_for_steps(node, i)
        start = start_of(node, call, rank)
        at = descriptor_in(node, rank, number) + layout.DESCRIPTOR_BYTES + start
        ask_for(at, start_of(node, call, rank + 1) - start)
    put(state, layout.PEER, 0)
    for i in range(1, size):
        rank = after(node, i)
        start = start_of(node, call, rank)
        at = descriptor_in(node, rank, number) + layout.DESCRIPTOR_BYTES + start
        memcpy(word(call, layout.INTO) + start, at, start_of(node, call, rank + 1) - start)
    return layout.DONE
