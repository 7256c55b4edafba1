"""Small collectives: each rank's data travels right behind its descriptor, so that one exchange does it all."""

from psgd.collectives.shm import layout
from psgd.collectives.shm.steps import combine, descriptor, finish, first_of, length_of, memcpy, put, word
from psgd.kernels.jit import part
from psgd.kernels.reduce import ADD_ALL, SUM, calculate


@part
def put_data(node: int, state: int, call: int, item: int) -> None:
    """Puts this rank's values behind its descriptor: all when reducing, else its own chunk."""
    me = word(node, layout.RANK)
    n = word(call, layout.COUNT)
    if not word(call, layout.ACTIONS) & layout.REDUCES:
        n = length_of(node, call, me, item)
    if n > 0:
        memcpy(descriptor(node, state, me) + layout.DESCRIPTOR_BYTES, word(call, layout.FROM), n * item)


@part
def reduce(node: int, state: int, call: int) -> None:
    """Combines what is behind all descriptors, in rank order, and keeps the part that this rank is to have."""
    me, item = word(node, layout.RANK), word(call, layout.ITEM)
    first, n, to = 0, word(call, layout.COUNT), word(call, layout.INTO)
    if not word(call, layout.ACTIONS) & layout.GATHERS:
        first, n, to = first_of(node, call, me, item), length_of(node, call, me, item), word(call, layout.CHUNK)
    elif word(call, layout.ROOT) != -1 and word(call, layout.ROOT) != me:
        n = 0
    if n > 0:
        combine_behind(node, state, call, to, first * item, n)


@part
def combine_behind(node: int, state: int, call: int, to: int, offset: int, n: int) -> None:
    """Combines n elements from byte `offset` on of what is behind all descriptors, in rank order."""
    size = word(node, layout.SIZE)
    offset += layout.DESCRIPTOR_BYTES
    if word(call, layout.OP) == SUM and size > 2:  # all at once: the same sums, but several peers' lines under way
        sources = word(node, layout.SCRATCH) + layout.FETCH_BYTES
        for rank in range(size):
            put(sources, rank, descriptor(node, state, rank) + offset)
        calculate(word(call, layout.ARITHMETIC), ADD_ALL, size, to, sources, 0, 0, n)
    else:
        left = descriptor(node, state, 0) + offset
        for rank in range(1, size):
            combine(call, to, left, descriptor(node, state, rank) + offset, n)
            left = to
    finish(call, to, n)


@part
def gather(node: int, state: int, call: int, item: int) -> None:
    """Copies what is behind every descriptor to its place."""
    me = word(node, layout.RANK)
    for rank in range(word(node, layout.SIZE)):
        to = word(call, layout.INTO) + first_of(node, call, rank, item) * item
        n = length_of(node, call, rank, item)
        if n > 0 and not (rank == me and to == word(call, layout.FROM)):
            memcpy(to, descriptor(node, state, rank) + layout.DESCRIPTOR_BYTES, n * item)
