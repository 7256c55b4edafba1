"""Middle-sized collectives on private memory: copied through cache-sized slots, piece by piece.

Each rank owns a chunk of the vector. In round i a rank puts its values of piece i of the others' chunks into its input
slot, combines piece i - 1 of its own chunk from all input slots into its result slot, takes a step, and copies piece
i - 2 of the other chunks from the result slots. A round begins when all have taken the step of the round before. That
makes three slots of each kind enough: what is written over was last read two rounds ago, before a step. There are more,
and a call begins with the slot after the last one's, because writing to lines that other cores still have in their own
caches costs several times as much as writing to lines that only the last-level cache holds.

Cost a rank, for P ranks and S bytes: 2 (P - 1)/P S copied into slots and as much out of them, in the last-level cache.
"""

from psgd.collectives.shm import layout
from psgd.collectives.shm.steps import (
    all_reached,
    combine,
    finish,
    first_of,
    length_of,
    memcpy,
    publish,
    put,
    region,
    word,
)
from psgd.kernels.jit import part


@part
def _input(node: int, rank: int, index: int) -> int:
    return region(node, rank) + layout.SLOTS_AT + (index % layout.SLOT_COUNT) * layout.INPUT_BYTES


@part
def _result(node: int, rank: int, index: int) -> int:
    return region(node, rank) + layout.RESULTS_AT + (index % layout.SLOT_COUNT) * layout.RESULT_BYTES


@part
def _piece(node: int, rank: int, index: int) -> int:
    return region(node, rank) + layout.SLOTS_AT + (index % layout.EXCHANGE_COUNT) * layout.EXCHANGE_BYTES


@part
def exchange(node: int, state: int, call: int, spins: int) -> int:
    """All-reduce without chunks: every rank puts all of its vector through its slots, and combines everything.

    For two ranks that moves as many bytes as chunks would, in fewer steps.
    """
    size, me = word(node, layout.SIZE), word(node, layout.RANK)
    send, out, total = word(call, layout.FROM), word(call, layout.INTO), word(call, layout.COUNT)
    item = word(call, layout.ITEM)
    piece = layout.EXCHANGE_BYTES // item
    rounds = (total + piece - 1) // piece
    i, turn = word(state, layout.POSITION), word(state, layout.TURN)
    # Round i puts piece i and combines piece i - 1: a rank copies while it would wait for the others' pieces. No rank
    # can be two rounds ahead, so a slot that is used again, many rounds later, has been read by all.
    while i <= rounds:
        if i > 0 and not all_reached(node, state, word(state, layout.STEP), spins):
            put(state, layout.POSITION, i)
            return layout.WAIT
        if i < rounds:
            memcpy(_piece(node, me, turn + i), send + i * piece * item, min(piece, total - i * piece) * item)
            publish(node, state)
        if i > 0:
            start = (i - 1) * piece
            n = min(piece, total - start)
            to, left = out + start * item, _piece(node, 0, turn + i - 1)
            for rank in range(1, size):
                combine(call, to, left, _piece(node, rank, turn + i - 1), n)
                left = to
            finish(call, to, n)
        i += 1
    put(state, layout.POSITION, 0)
    put(state, layout.TURN, turn + rounds)
    return layout.DONE


@part
def chunks(node: int, state: int, call: int, spins: int) -> int:
    """Reduce-scatter, all-gather or both, over chunks of any lengths."""
    size, item = word(node, layout.SIZE), word(call, layout.ITEM)
    reducing = word(call, layout.ACTIONS) & layout.REDUCES != 0
    gathers = word(call, layout.ACTIONS) & layout.GATHERS != 0 and _keeps(node, call)
    piece = layout.RESULT_BYTES // item
    if reducing:
        piece = min(piece, layout.INPUT_BYTES // (item * size))
    longest = 0
    for rank in range(size):
        longest = max(longest, length_of(node, call, rank, item))
    rounds = (longest + piece - 1) // piece
    i, turn = word(state, layout.POSITION), word(state, layout.TURN)
    # Three pieces are under way in a round: i goes in, i - 1 is combined, i - 2 comes out. The last two rounds drain.
    while i <= rounds + 1:
        if i > 0 and not all_reached(node, state, word(state, layout.STEP), spins):
            put(state, layout.POSITION, i)
            return layout.WAIT
        if reducing and i < rounds:
            _put_inputs(node, call, i, turn, piece)
        if 0 < i <= rounds:
            _make_result(node, call, i - 1, turn, piece)
        if i <= rounds:
            publish(node, state)
        if gathers and i > 1:
            _take_results(node, call, i - 2, turn, piece)
        i += 1
    put(state, layout.POSITION, 0)
    put(state, layout.TURN, turn + rounds)
    return layout.DONE


@part
def _keeps(node: int, call: int) -> bool:
    """Whether this rank is to have a result at all."""
    root = word(call, layout.ROOT)
    return root in (-1, word(node, layout.RANK)) or not word(call, layout.ACTIONS) & layout.REDUCES


@part
def _put_inputs(node: int, call: int, i: int, turn: int, piece: int) -> None:
    """Puts this rank's values of piece i of the others' chunks into its input slot."""
    me, item = word(node, layout.RANK), word(call, layout.ITEM)
    for rank in range(word(node, layout.SIZE)):
        n = min(piece, length_of(node, call, rank, item) - i * piece)
        if n > 0 and rank != me:
            start = (first_of(node, call, rank, item) + i * piece) * item
            memcpy(_input(node, me, turn + i) + rank * piece * item, word(call, layout.FROM) + start, n * item)


@part
def _make_result(node: int, call: int, i: int, turn: int, piece: int) -> None:
    """Makes piece i of this rank's chunk: in its result slot where others take it from there, else in place."""
    me, item = word(node, layout.RANK), word(call, layout.ITEM)
    done = i * piece
    n = min(piece, length_of(node, call, me, item) - done)
    if n <= 0:
        return
    element = first_of(node, call, me, item) + done
    to = _result(node, me, turn + i)
    at = word(call, layout.INTO) + element * item
    if word(call, layout.ACTIONS) & layout.REDUCES:
        own = word(call, layout.FROM) + element * item
        if word(call, layout.ACTIONS) & layout.GATHERS == 0:
            to = at = word(call, layout.CHUNK) + done * item
        left = own if me == 0 else _input(node, 0, turn + i) + me * piece * item
        for rank in range(1, word(node, layout.SIZE)):
            combine(call, to, left, own if me == rank else _input(node, rank, turn + i) + me * piece * item, n)
            left = to
        finish(call, to, n)
    else:
        own = word(call, layout.FROM) + done * item
        memcpy(to, own, n * item)
        if at == own:
            return
    if at != to and _keeps(node, call):
        memcpy(at, to, n * item)


@part
def _take_results(node: int, call: int, i: int, turn: int, piece: int) -> None:
    """Copies piece i of the other chunks from their owners' result slots."""
    me, item = word(node, layout.RANK), word(call, layout.ITEM)
    for rank in range(word(node, layout.SIZE)):
        n = min(piece, length_of(node, call, rank, item) - i * piece)
        if n > 0 and rank != me:
            at = word(call, layout.INTO) + (first_of(node, call, rank, item) + i * piece) * item
            memcpy(at, _result(node, rank, turn + i), n * item)
