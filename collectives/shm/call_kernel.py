"""One collective call in shared memory, from its descriptor to its end, in one kernel."""

from typing import Any

import numpy as np
from numba import types

from psgd.collectives.shm import chunked, direct, inline, layout, slots
from psgd.collectives.shm.steps import (
    agreed,
    all_greeted,
    all_reached,
    descriptor,
    first_of,
    length_of,
    memcpy,
    publish,
    put,
    word,
)
from psgd.kernels.jit import kernel, part
from psgd.kernels.reduce import arithmetic

# Phases of a call, kept in the state.
_BEGIN, GREETING, _SLOTS, _REDUCING, _FETCHING, _ENDING, _TAKING = range(7)


@kernel
def run(node: int, state: int, call: int, maps: int, where: int, reads: bool, spins: int) -> int:
    """Takes a call as far as it goes now.

    Args:
        node: address of the node's table.
        state: address of this rank's state.
        call: address of the call's words, the same until the call is done.
        maps: address of the registrations' table.
        where: address of WHERE_WORDS words for each rank, for this kernel's use.
        reads: peers' private memory can be read.
        spins: looks at a word before WAIT.

    Returns:
        DONE; WAIT: call it again; MISMATCH: descriptors differ, nothing was done, and they stay readable until the next
        call but one; FAILED: a peer's memory could not be read.
    """
    if word(state, layout.PHASE) == _BEGIN:
        memcpy(descriptor(node, state, word(node, layout.RANK)), call, layout.DESCRIPTOR_BYTES)
        if word(call, layout.METHOD) in layout.BEHIND:
            inline.put_data(node, state, call, word(call, layout.ITEM))
        publish(node, state)
        put(state, layout.PHASE, GREETING)
    if word(state, layout.PHASE) == GREETING:
        offset, nbytes = _read_first(node, call)
        if not all_greeted(node, state, offset, nbytes, spins):
            return layout.WAIT
        result = _greeted(node, state, call, maps, where, reads)
        put(state, layout.CALLS, word(state, layout.CALLS) + 1)
        if word(state, layout.PHASE) == _BEGIN:
            return result
    if word(state, layout.PHASE) == _TAKING:
        result = chunked.take(node, state, call, spins)
        if result == layout.DONE:
            put(state, layout.PHASE, _BEGIN)
        return result
    if word(state, layout.PHASE) == _SLOTS:
        both = word(call, layout.ACTIONS) == layout.REDUCES | layout.GATHERS and word(call, layout.ROOT) == -1
        if both and word(node, layout.SIZE) == 2:
            result = slots.exchange(node, state, call, spins)
        else:
            result = slots.chunks(node, state, call, spins)
        if result == layout.DONE:
            put(state, layout.PHASE, _BEGIN)
        return result
    return _direct(node, state, call, where, spins)


def prepare(dtype: "np.dtype[Any]") -> None:
    """Compiles what calls on arrays of that dtype need, without a call."""
    run.compile((types.int64,) * 5 + (types.boolean, types.int64))  # type: ignore[attr-defined]
    arithmetic(dtype)


@part
def _read_first(node: int, call: int) -> tuple[int, int]:
    """What a rank will read first behind the others' descriptors: offset and number of bytes."""
    if word(call, layout.METHOD) == layout.CHUNKED:
        me = word(node, layout.RANK)
        start = chunked.start_of(node, call, me)
        return start, chunked.start_of(node, call, me + 1) - start
    if word(call, layout.METHOD) == layout.INLINE and word(call, layout.ACTIONS) & layout.GATHERS:
        return 0, word(call, layout.COUNT) * word(call, layout.ITEM)
    return 0, 1


@part
def _greeted(node: int, state: int, call: int, maps: int, where: int, reads: bool) -> int:
    """Compares the descriptors, all of which are there. Ends what is small; sets the next phase for the rest."""
    item, method = word(call, layout.ITEM), word(call, layout.METHOD)
    put(state, layout.PHASE, _BEGIN)
    put(state, layout.PATH, method)
    if not agreed(node, state):
        return layout.MISMATCH
    if method == layout.INLINE:
        if word(call, layout.ACTIONS) & layout.REDUCES:
            inline.reduce(node, state, call)
        else:
            inline.gather(node, state, call, item)
    elif method == layout.CHUNKED:
        chunked.reduce(node, state, call)
        publish(node, state)
        if word(call, layout.ROOT) in (-1, word(node, layout.RANK)):
            put(state, layout.PHASE, _TAKING)
    elif method != layout.AGREE:
        mapped = direct.locate(node, state, call, maps, where, item)
        at_once = mapped or (reads and method == layout.DIRECT)
        put(state, layout.PATH, layout.REGISTERED if mapped else (layout.DIRECT if at_once else layout.SLOTS))
        put(state, layout.PHASE, _REDUCING if at_once else _SLOTS)
    return layout.DONE


@part
def _direct(node: int, state: int, call: int, where: int, spins: int) -> int:
    item = word(call, layout.ITEM)
    me, root = word(node, layout.RANK), word(call, layout.ROOT)
    mapped = word(state, layout.PATH) == layout.REGISTERED
    if word(state, layout.PHASE) == _REDUCING:
        if word(call, layout.ACTIONS) & layout.REDUCES:
            returns = word(call, layout.ACTIONS) & layout.GATHERS != 0
            if not direct.reduce_chunk(node, call, where, returns and mapped):
                put(state, layout.PHASE, _BEGIN)
                return layout.FAILED
            publish(node, state)
            put(state, layout.GOAL, word(state, layout.STEP))
            put(state, layout.PHASE, _FETCHING if returns and not mapped and root in (-1, me) else _ENDING)
            if returns and not mapped and word(state, layout.PHASE) == _ENDING:
                publish(node, state)  # the step that others take after fetching
        else:
            own, to = word(call, layout.FROM), word(call, layout.INTO) + first_of(node, call, me, item) * item
            if own != to and length_of(node, call, me, item) > 0:
                memcpy(to, own, length_of(node, call, me, item) * item)
            put(state, layout.PHASE, _FETCHING)
    if word(state, layout.PHASE) == _FETCHING:
        result = direct.fetch_chunks(node, state, call, where, item, spins)
        if result == layout.WAIT:
            return result
        if result == layout.FAILED:
            put(state, layout.PHASE, _BEGIN)
            return result
        publish(node, state)
        put(state, layout.PHASE, _ENDING)
    if not all_reached(node, state, word(state, layout.STEP), spins):
        return layout.WAIT
    put(state, layout.PHASE, _BEGIN)
    return layout.DONE
