"""Collectives in a node's shared memory: inline with the lines, through slots, or directly between the arrays.

inline: at most 64 KiB a rank, one step. slots: any private memory, copied through the cache (compiled/slots.py).
direct: registered memory, or private memory that peers can read: read where it lies (compiled/direct.py). All three
combine values in rank order, so their results have the same bits.
"""

from typing import TYPE_CHECKING

import numpy as np

from psgd.collectives.calls import Call
from psgd.collectives.compiled import collective, layout
from psgd.collectives.node import address_of
from psgd.kernels.reduce import arithmetic

if TYPE_CHECKING:
    from psgd.collectives.engine import Engine, Program

METHODS = {"inline": layout.INLINE, "slots": layout.SLOTS, "direct": layout.DIRECT}
PATHS = {
    layout.INLINE: ("inline", "shared"),
    layout.SLOTS: ("slots", "shared"),
    layout.DIRECT: ("direct", "readv"),
    layout.REGISTERED: ("direct", "registered"),
}


def fits_inline(call: Call) -> bool:
    """Whether what any rank has to say fits behind its line. The same on all ranks."""
    if call.op is not None:
        return call.nbytes <= layout.INLINE_BYTES
    return bool(call.parts[:, 1].max() <= layout.INLINE_BYTES)


def run(engine: "Engine", call: Call, algorithm: str) -> "Program":
    """Runs a call whose line is filled, lines included.

    What all ranks registered is taken directly unless it travels inline; where private memory cannot be read, slots
    stand in for `direct`.

    Raises:
        AgreedError: lines differ or some rank's arguments are wrong.
        PeerLostError: a peer's memory cannot be read any more.
    """
    node, words = engine.node, engine.block
    assert node is not None
    rank = node.rank
    send, recv, op = call.send, call.recv, call.op
    scatters = op is not None and call.verb not in {"Allreduce", "Reduce"}
    array = send if send is not None else recv
    assert array is not None
    first, length = (int(x) for x in call.parts[rank])
    result = recv
    if call.verb == "Reduce" and recv is None:  # not the root: its chunk of the result stays here until it is fetched
        result = engine.channel.scratch("chunk", length, array.dtype)
    into = 0 if recv is None else address_of(recv)
    chunk = 0 if result is None else address_of(result)
    if op is not None and result is recv and not scatters:
        chunk += first * array.itemsize
    parts = np.ascontiguousarray(call.parts)
    words[layout.FROM] = 0 if send is None else address_of(send)
    words[layout.INTO] = into
    words[layout.CHUNK] = chunk
    words[layout.PARTS] = address_of(parts)
    words[layout.ACTIONS] = (0 if op is None else layout.REDUCES) | (0 if scatters else layout.GATHERS)
    words[layout.OP] = 0 if op is None else op.code
    words[layout.DIVISOR] = engine.size if op is not None and op.mean else 0
    words[layout.ROOT] = call.root if call.verb == "Reduce" else -1
    words[layout.METHOD] = METHODS[algorithm]
    if send is not None:
        name, offset = node.find(address_of(send), send.nbytes)
        words[layout.SEND : layout.SEND_OFFSET + 1] = address_of(send), name, offset
    if recv is not None:
        name, offset = node.find(into, recv.nbytes)
        words[layout.RECEIVE : layout.RECEIVE_OFFSET + 1] = into, name, offset
    else:  # others look for the chunk where it would lie in the whole
        words[layout.RECEIVE : layout.RECEIVE_OFFSET + 1] = chunk - first * array.itemsize, -1, 0
    words[layout.ITEM] = array.itemsize
    words[layout.ARITHMETIC] = 0 if op is None else arithmetic(array.dtype)
    yield from engine.kernel(lambda: collective.run(*engine.addresses, node.reads, engine.spins))


def agree(engine: "Engine") -> "Program":
    """Exchanges lines only, between the ranks of the node.

    Raises:
        AgreedError: lines differ or some rank's arguments are wrong.
    """
    engine.block[layout.METHOD] = layout.AGREE
    engine.block[layout.ITEM] = 1
    yield from engine.kernel(lambda: collective.run(*engine.addresses, False, engine.spins))


def copy_own(call: Call, rank: int) -> None:
    """Copies this rank's block to its place in the result, unless it is there."""
    if call.send is not None and call.recv is not None:
        start, length = (int(x) for x in call.parts[rank])
        place = call.recv[start : start + length]
        if length and address_of(place) != address_of(call.send):
            place[:] = call.send
