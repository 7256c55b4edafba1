"""Steps and descriptors: how ranks see each other's progress and whether they agree on what they do."""

from numba import types

from psgd.collectives.shm import layout
from psgd.kernels.jit import part
from psgd.kernels.memory import atomic
from psgd.kernels.memory.cacheline import LINE_BYTES, prefetch
from psgd.kernels.reduce import COMBINE, DIVIDE, calculate

memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))


@part
def word(table: int, index: int) -> int:
    """Reads word `index` of the table at an address."""
    value: int = atomic.load(table + 8 * index)
    return value


@part
def put(table: int, index: int, value: int) -> None:
    """Writes word `index` of the table at an address."""
    atomic.store(table + 8 * index, value)


@part
def region(node: int, rank: int) -> int:
    """The address of a rank's region."""
    return word(node, layout.REGIONS + rank)


@part
def publish(node: int, state: int) -> None:
    """Takes one step: a rank that sees the step sees all that was written before."""
    step = word(state, layout.STEP) + 1
    put(state, layout.STEP, step)
    atomic.store(region(node, word(node, layout.RANK)) + layout.STEP_AT, step)


@part
def reached(node: int, rank: int, step: int, spins: int) -> bool:
    """Whether a rank has taken a step, looking `spins` more times than once."""
    address = region(node, rank) + layout.STEP_AT
    while atomic.load(address) < step:
        if spins <= 0:
            return False
        spins -= 1
        atomic.pause()
    return True


@part
def all_reached(node: int, state: int, step: int, spins: int) -> bool:
    """Whether all ranks have taken a step. Where not, the next turn begins with the rank that is behind."""
    for i in range(word(state, layout.PEER), word(node, layout.SIZE)):
        if not reached(node, after(node, i), step, spins):
            put(state, layout.PEER, i)
            return False
        ask_for_steps(node, i)
    put(state, layout.PEER, 0)
    return True


@part
def after(node: int, i: int) -> int:
    """The i-th rank after this one, in a circle: ranks look at each other in different orders, or queue at one line."""
    rank = word(node, layout.RANK) + i
    return rank if rank < word(node, layout.SIZE) else rank - word(node, layout.SIZE)


@part
def ask_for_steps(node: int, i: int) -> None:
    """Has the steps of the ranks behind the i-th come into the cache together, not each when its turn comes."""
    for ahead in range(i + 1, min(i + 1 + layout.AHEAD_RANKS, word(node, layout.SIZE))):
        prefetch(region(node, after(node, ahead)) + layout.STEP_AT)


@part
def ask_for(address: int, nbytes: int) -> None:
    """Has what a peer has published come into the cache, as far as that is worth while."""
    for offset in range(0, min(nbytes, layout.AHEAD_BYTES), LINE_BYTES):
        prefetch(address + offset)


@part
def all_greeted(node: int, state: int, offset: int, nbytes: int, spins: int) -> bool:
    """As `all_reached` the current step, asking for what is read next: descriptors, and so many bytes behind them."""
    for i in range(word(state, layout.PEER), word(node, layout.SIZE)):
        rank = after(node, i)
        if not reached(node, rank, word(state, layout.STEP), spins):
            put(state, layout.PEER, i)
            return False
        ask_for_steps(node, i)
        prefetch(descriptor(node, state, rank))
        ask_for(descriptor(node, state, rank) + layout.DESCRIPTOR_BYTES + offset, nbytes)
    put(state, layout.PEER, 0)
    return True


@part
def descriptor(node: int, state: int, rank: int) -> int:
    """The address of a rank's descriptor in the current call. Two take turns: a rank two calls ahead cannot be."""
    return descriptor_in(node, rank, word(state, layout.CALLS))


@part
def descriptor_in(node: int, rank: int, number: int) -> int:
    """The same in the call of that number."""
    return region(node, rank) + layout.DESCRIPTORS_AT + (number & 1) * layout.DESCRIPTOR_STRIDE


@part
def agreed(node: int, state: int) -> bool:
    """Whether all descriptors of the current call agree. Shapes agree where one of them is 0, that of a flat array."""
    first = descriptor(node, state, 0)
    shape = word(first, layout.SHAPE)
    for rank in range(word(node, layout.SIZE)):
        other = descriptor(node, state, rank)
        if (
            word(other, layout.SIGNATURE) != word(first, layout.SIGNATURE)
            or word(other, layout.COUNT) != word(first, layout.COUNT)
            or word(other, layout.ERROR) != 0
        ):
            return False
        if word(other, layout.SHAPE) != 0:
            if shape != 0 and word(other, layout.SHAPE) != shape:
                return False
            shape = word(other, layout.SHAPE)
    return True


@part
def first_of(node: int, call: int, rank: int, item: int) -> int:
    """The first element of a rank's chunk; of the rank behind the last one, the number of elements."""
    parts, size, count = word(call, layout.PARTS), word(node, layout.SIZE), word(call, layout.COUNT)
    if parts != 0:
        return word(parts, 2 * rank)
    align = max(1, layout.ALIGN_BYTES // item)
    blocks = (count + align - 1) // align
    return min(count, align * (rank * (blocks // size) + min(rank, blocks % size)))


@part
def length_of(node: int, call: int, rank: int, item: int) -> int:
    """The elements of a rank's chunk."""
    parts = word(call, layout.PARTS)
    if parts != 0:
        return word(parts, 2 * rank + 1)
    return first_of(node, call, rank + 1, item) - first_of(node, call, rank, item)


@part
def combine(call: int, out: int, a: int, b: int, n: int) -> None:
    """`out = a op b` for n elements at addresses, with the call's operation and dtype; `out` may be `a` or `b`."""
    calculate(word(call, layout.ARITHMETIC), COMBINE, word(call, layout.OP), out, a, b, 0, n)


@part
def finish(call: int, out: int, n: int) -> None:
    """Divides n elements where the call asks for a mean."""
    if word(call, layout.DIVISOR) > 0:
        calculate(word(call, layout.ARITHMETIC), DIVIDE, word(call, layout.DIVISOR), out, 0, 0, 0, n)
