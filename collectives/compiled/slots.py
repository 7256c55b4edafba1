"""Middle-sized collectives on private memory: copied through cache-sized slots, piece by piece.

Each rank owns a chunk of the vector. In round i a rank puts its values of piece i of the others' chunks into its input
slot, combines piece i - 1 of its own chunk from all input slots into its result slot, takes a step, and copies piece
i - 2 of the other chunks from the result slots. A round begins when all have taken the step of the round before. That
also makes three slots of each kind enough: what is written over was last read two rounds ago, before a step.

Cost a rank, for P ranks and S bytes: 2 (P - 1)/P S copied into slots and as much out of them; slots stay in the cache.
"""

import numpy as np
from numba import carray

from psgd.collectives.compiled import layout
from psgd.collectives.compiled.steps import all_reached, first_of, length_of, memcpy, publish, put, region, word
from psgd.kernels import atomic
from psgd.kernels.jit import kernel
from psgd.kernels.reduce import combine, divide


@kernel
def _input(node: int, rank: int, index: int) -> int:
    return region(node, rank) + layout.SLOTS_AT + (index % layout.SLOT_COUNT) * layout.INPUT_BYTES


@kernel
def _result(node: int, rank: int, index: int) -> int:
    return region(node, rank) + layout.RESULTS_AT + (index % layout.SLOT_COUNT) * layout.RESULT_BYTES


@kernel
def exchange(node: int, state: int, call: int, spins: int, like: np.ndarray) -> int:
    """All-reduce without chunks: every rank puts all of its vector through its slots, and combines everything.

    For two ranks that moves as many bytes as chunks would, in fewer steps.
    """
    size, me = word(node, layout.SIZE), word(node, layout.RANK)
    send, out, total = word(call, layout.FROM), word(call, layout.INTO), word(call, layout.COUNT)
    item = like.itemsize
    piece = layout.RESULT_BYTES // item
    rounds = (total + piece - 1) // piece
    i = word(state, layout.POSITION)
    while i <= rounds:
        if i > 0 and not all_reached(node, state, word(state, layout.STEP), spins):
            put(state, layout.POSITION, i)
            return layout.WAIT
        if i < rounds:
            memcpy(_input(node, me, i), send + i * piece * item, min(piece, total - i * piece) * item)
            publish(node, state)
        if i > 0:
            start = (i - 1) * piece
            n = min(piece, total - start)
            result = carray(atomic.pointer(out + start * item, like), n)
            zeroth = carray(atomic.pointer(_input(node, 0, i - 1), like), n)
            for rank in range(1, size):
                data = carray(atomic.pointer(_input(node, rank, i - 1), like), n)
                combine(word(call, layout.OP), result, zeroth if rank == 1 else result, data)
            if word(call, layout.DIVISOR) > 0:
                divide(result, word(call, layout.DIVISOR))
        i += 1
    put(state, layout.POSITION, 0)
    return layout.DONE


@kernel
def chunks(node: int, state: int, call: int, spins: int, like: np.ndarray) -> int:
    """Reduce-scatter, all-gather or both, over chunks of any lengths."""
    size, me = word(node, layout.SIZE), word(node, layout.RANK)
    send, out, root = word(call, layout.FROM), word(call, layout.INTO), word(call, layout.ROOT)
    reducing = word(call, layout.ACTIONS) & layout.REDUCES != 0
    keeps = root in (-1, me) or not reducing
    gathers = word(call, layout.ACTIONS) & layout.GATHERS != 0 and keeps
    item = like.itemsize
    piece = layout.RESULT_BYTES // item
    if reducing:
        piece = min(piece, layout.INPUT_BYTES // (item * size))
    longest = 0
    for rank in range(size):
        longest = max(longest, length_of(node, call, rank, item))
    rounds = (longest + piece - 1) // piece
    first, length = first_of(node, call, me, item), length_of(node, call, me, item)
    i = word(state, layout.POSITION)
    while i <= rounds + 1:
        if i > 0 and not all_reached(node, state, word(state, layout.STEP), spins):
            put(state, layout.POSITION, i)
            return layout.WAIT
        if reducing and i < rounds:
            for rank in range(size):
                n = min(piece, length_of(node, call, rank, item) - i * piece)
                if n > 0 and rank != me:
                    start = (first_of(node, call, rank, item) + i * piece) * item
                    memcpy(_input(node, me, i) + rank * piece * item, send + start, n * item)
        done = (i - 1) * piece
        n = min(piece, length - done)
        if 0 < i <= rounds and n > 0:
            to = _result(node, me, i - 1)
            at = out + (first + done) * item
            if reducing:
                own = send + (first + done) * item
                if word(call, layout.ACTIONS) & layout.GATHERS == 0:
                    at = word(call, layout.CHUNK) + done * item
                    to = at
                result = carray(atomic.pointer(to, like), n)
                for rank in range(1, size):
                    left = _input(node, 0, i - 1) + me * piece * item
                    right = _input(node, rank, i - 1) + me * piece * item
                    a = carray(atomic.pointer(own if me == 0 else left, like), n)
                    b = carray(atomic.pointer(own if me == rank else right, like), n)
                    combine(word(call, layout.OP), result, a if rank == 1 else result, b)
                if word(call, layout.DIVISOR) > 0:
                    divide(result, word(call, layout.DIVISOR))
            else:
                memcpy(to, send + done * item, n * item)
            if keeps and at != to and (reducing or at != send + done * item):
                memcpy(at, to, n * item)
        if i <= rounds:
            publish(node, state)
        if gathers and i > 1:
            done = (i - 2) * piece
            for rank in range(size):
                n = min(piece, length_of(node, call, rank, item) - done)
                if n > 0 and rank != me:
                    at = out + (first_of(node, call, rank, item) + done) * item
                    memcpy(at, _result(node, rank, i - 2), n * item)
        i += 1
    put(state, layout.POSITION, 0)
    return layout.DONE
