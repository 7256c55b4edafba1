"""Large collectives without copies: arrays are read where they lie.

What was registered is mapped by all ranks of the node and read like one's own memory. What is private is read by
`process_vm_readv`, a cache-sized block at a time, where the kernel allows that. Each rank reduces its own chunk from
all ranks' arrays; then results are written to all (everything mapped), or every rank fetches the others' chunks.

Cost a rank, for P ranks and S bytes: S read and (P - 1)/P S written or fetched; two steps.
"""

import numpy as np
from numba import types

from psgd.collectives.shm import layout
from psgd.collectives.shm.steps import (
    combine,
    descriptor,
    finish,
    first_of,
    length_of,
    memcpy,
    put,
    reached,
    region,
    word,
)
from psgd.kernels.jit import kernel, part
from psgd.kernels.memory import atomic
from psgd.kernels.memory.cacheline import LINE_BYTES, drain, prefetch, put_line
from psgd.kernels.reduce import ADD_ALL, SUM, calculate

_readv = types.ExternalFunction(
    "process_vm_readv", types.intp(types.intp, types.intp, types.intp, types.intp, types.intp, types.intp)
)
_LONGEST = 1 << 30  # a single call moves less than 2 GiB


@part
def locate(node: int, state: int, call: int, maps: int, where: int, item: int) -> bool:
    """Finds all ranks' arrays from the descriptors of the current call.

    Args:
        node: address of the node's table.
        state: address of the state.
        call: address of the call.
        maps: address of one row for each registration, with one address for each rank.
        where: address of WHERE_WORDS words for each rank, written.
        item: bytes of an element.

    Returns:
        Whether every array that others read, and when reducing every one that results go to, is mapped.
    """
    size = word(node, layout.SIZE)
    reducing = word(call, layout.ACTIONS) & layout.REDUCES != 0
    returns = reducing and word(call, layout.ACTIONS) & layout.GATHERS != 0
    mapped = True
    for rank in range(size):
        theirs = descriptor(node, state, rank)
        row = where + 8 * layout.WHERE_WORDS * rank
        name = word(theirs, layout.SEND_ID)
        put(row, layout.WHERE_SEND, word(theirs, layout.SEND))
        put(row, layout.WHERE_SEND_MAPPED, 1 if name >= 0 else 0)
        if name >= 0:
            put(row, layout.WHERE_SEND, word(maps, name * size + rank) + word(theirs, layout.SEND_OFFSET))
        elif reducing or length_of(node, call, rank, item) > 0:
            mapped = False
        name = word(theirs, layout.RECEIVE_ID)
        put(row, layout.WHERE_RECEIVE, word(theirs, layout.RECEIVE))
        put(row, layout.WHERE_RECEIVE_MAPPED, 1 if name >= 0 else 0)
        if name >= 0:
            put(row, layout.WHERE_RECEIVE, word(maps, name * size + rank) + word(theirs, layout.RECEIVE_OFFSET))
        elif returns and word(call, layout.ROOT) in (-1, rank):
            mapped = False
    return mapped


@part
def read(node: int, rank: int, to: int, source: int, nbytes: int) -> bool:
    """Copies from a peer's private memory. False where the kernel refuses or the peer is gone."""
    vectors = np.empty(4, np.int64)
    address = vectors.ctypes.data
    done = 0
    while done < nbytes:
        n = min(nbytes - done, _LONGEST)
        vectors[0], vectors[1], vectors[2], vectors[3] = to + done, n, source + done, n
        if _readv(word(node, layout.REGIONS + word(node, layout.SIZE) + rank), address, 1, address + 16, 1, 0) != n:
            return False
        done += n
    return True


@part
def reduce_chunk(node: int, call: int, where: int, push: bool) -> bool:
    """Combines this rank's chunk from all ranks' arrays, in rank order. Waits for nothing.

    Args:
        node: address of the node's table.
        call: address of the call.
        where: as `locate` filled it.
        push: everything is mapped, and the result goes to the others' receive arrays as well.

    Returns:
        False where a peer's memory could not be read.
    """
    size, me, item = word(node, layout.SIZE), word(node, layout.RANK), word(call, layout.ITEM)
    first, length = first_of(node, call, me, item), length_of(node, call, me, item)
    mapped = True
    for rank in range(size):
        mapped = mapped and word(where, layout.WHERE_WORDS * rank + layout.WHERE_SEND_MAPPED) == 1
    block = (layout.BLOCK_BYTES if mapped else layout.FETCH_BYTES) // item
    in_place = word(call, layout.CHUNK) == word(call, layout.FROM) + first * item
    for start in range(0, length, block):
        n = min(block, length - start)
        at = word(call, layout.CHUNK) + start * item
        if mapped and word(call, layout.OP) == SUM:
            made = word(node, layout.SCRATCH)
            _add_mapped(call, where, size, made, first + start, n, item)
            finish(call, made, n)
            _write(at, made, n * item, not in_place, _source(where, me, first + start + n, item))
            if push:
                _push(node, call, where, made, first + start, n * item, not in_place)
            continue
        if not _combine_in_turn(node, call, where, at, first + start, n):
            return False
        finish(call, at, n)
        if push:
            _push(node, call, where, at, first + start, n * item, not in_place)
    drain()
    return True


@part
def _push(node: int, call: int, where: int, at: int, element: int, nbytes: int, past_cache: bool) -> None:
    """Writes a block of results to the other ranks."""
    size, me, root = word(node, layout.SIZE), word(node, layout.RANK), word(call, layout.ROOT)
    for i in range(1, size):
        rank = (me + i) % size
        if root in (-1, rank):
            to = word(where, layout.WHERE_WORDS * rank + layout.WHERE_RECEIVE) + element * word(call, layout.ITEM)
            _write(to, at, nbytes, past_cache, _source(where, rank, element, word(call, layout.ITEM)) + nbytes)


@part
def _write(to: int, source: int, nbytes: int, past_cache: bool, ahead: int) -> None:
    """Copies a block: past the cache where what was there has not just been read, as it has been in place.

    With the former as many bytes come into the cache from `ahead`, which are read next: else memory would only be
    written now, and only be read then.
    """
    if past_cache and (to | nbytes) % LINE_BYTES == 0:
        for offset in range(0, nbytes, LINE_BYTES):
            put_line(to + offset, source + offset)
            prefetch(ahead + offset)
    else:
        memcpy(to, source, nbytes)


@part
def _source(where: int, rank: int, element: int, item: int) -> int:
    return word(where, layout.WHERE_WORDS * rank + layout.WHERE_SEND) + element * item


@part
def _add_mapped(call: int, where: int, size: int, to: int, element: int, n: int, item: int) -> None:
    """Sums a block of all ranks' mapped arrays."""
    sources = np.empty(size, np.int64)
    for rank in range(size):
        sources[rank] = _source(where, rank, element, item)
    calculate(word(call, layout.ARITHMETIC), ADD_ALL, size, to, sources.ctypes.data, 0, 0, n)


@part
def _combine_in_turn(node: int, call: int, where: int, at: int, element: int, n: int) -> bool:
    size, me, item = word(node, layout.SIZE), word(node, layout.RANK), word(call, layout.ITEM)
    scratch = word(node, layout.SCRATCH)
    mine = word(call, layout.FROM) + element * item
    if me > 1 and mine == at:  # in place: the sum of the ranks before would write over it
        memcpy(scratch + 2 * layout.FETCH_BYTES, mine, n * item)
        mine = scratch + 2 * layout.FETCH_BYTES
    left = at
    for rank in range(size):
        source = mine
        if rank != me:
            source = _source(where, rank, element, item)
            if word(where, layout.WHERE_WORDS * rank + layout.WHERE_SEND_MAPPED) == 0:
                fetched = scratch + (layout.FETCH_BYTES if rank == 1 else 0)
                if not read(node, rank, fetched, source, n * item):
                    return False
                source = fetched
        if rank == 0:
            left = source
        else:
            combine(call, at, left, source, n)
            left = at
    return True


@part
def fetch_chunks(node: int, state: int, call: int, where: int, item: int, spins: int) -> int:
    """Fetches the other ranks' chunks, beginning with the next rank's.

    When reducing they are results, there once their owner has taken the step GOAL; otherwise they are what ranks send.

    Returns:
        DONE, WAIT, or FAILED where a peer's memory could not be read.
    """
    size, me = word(node, layout.SIZE), word(node, layout.RANK)
    reducing = word(call, layout.ACTIONS) & layout.REDUCES != 0
    column = layout.WHERE_RECEIVE if reducing else layout.WHERE_SEND
    i = max(1, word(state, layout.POSITION))
    while i < size:
        rank = (me + i) % size
        nbytes = length_of(node, call, rank, item) * item
        if nbytes > 0:
            if reducing and not reached(node, rank, word(state, layout.GOAL), spins):
                put(state, layout.POSITION, i)
                return layout.WAIT
            offset = first_of(node, call, rank, item) * item
            source = word(where, layout.WHERE_WORDS * rank + column) + (offset if reducing else 0)
            if word(where, layout.WHERE_WORDS * rank + column + 1) == 1:
                memcpy(word(call, layout.INTO) + offset, source, nbytes)
            elif not read(node, rank, word(call, layout.INTO) + offset, source, nbytes):
                put(state, layout.POSITION, 0)
                return layout.FAILED
        i += 1
    put(state, layout.POSITION, 0)
    return layout.DONE


@kernel
def readable(node: int, address: int, scratch: int, expected: int, rank: int) -> bool:
    """Whether a peer's private memory can be read: 8 bytes at `address` there must hold `expected`."""
    return read(node, rank, scratch, address, 8) and word(scratch, 0) == expected


@kernel
def aborted(node: int) -> int:
    """The first rank that gave up inside a call, or -1."""
    for rank in range(word(node, layout.SIZE)):
        if atomic.load(region(node, rank) + layout.ABORT_AT) != 0:
            return rank
    return -1
