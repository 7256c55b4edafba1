"""Collectives in a node's shared memory: inline with the lines, through slots, or directly between the arrays.

inline: at most 64 KiB a rank, one step. slots: any private memory, copied through the cache (compiled/slots.py).
direct: registered memory, or private memory that peers can read: read where it lies (compiled/direct.py). All three
combine values in rank order, so their results have the same bits.
"""

import struct
from typing import TYPE_CHECKING, Any

from psgd.collectives.arguments.call import Call
from psgd.collectives.shm import collective, layout
from psgd.collectives.mpi.node import address_of
from psgd.kernels.reduce import arithmetic

if TYPE_CHECKING:
    from psgd.collectives.dispatch.engine import Engine
    from psgd.collectives.mpi.wait import Steps

_WHOLE = ("Allreduce", "Reduce")
_pack_places: Any = struct.Struct("6q").pack_into
_pack_call: Any = struct.Struct("11q").pack_into
METHODS = {"inline": layout.INLINE, "slots": layout.SLOTS, "direct": layout.DIRECT}
PATHS = {
    layout.INLINE: ("inline", "shared"),
    layout.SLOTS: ("slots", "shared"),
    layout.DIRECT: ("direct", "readv"),
    layout.REGISTERED: ("direct", "registered"),
}


def fits_inline(call: Call) -> bool:
    """Whether what any rank has to say fits behind its line. The same on all ranks."""
    return (call.nbytes if call.op is not None else call.longest) <= layout.INLINE_BYTES


def run(engine: "Engine", call: Call, algorithm: str) -> "Program":
    """Runs a call whose line is filled, lines included.

    What all ranks registered is taken directly unless it travels inline; where private memory cannot be read, slots
    stand in for `direct`.

    Raises:
        AgreedError: lines differ or some rank's arguments are wrong.
        PeerLostError: a peer's memory cannot be read any more.
    """
    node = engine.node
    assert node is not None
    send, recv, op, item = call.send, call.recv, call.op, call.itemsize
    scatters = op is not None and call.verb not in _WHOLE
    source = 0 if send is None else address_of(send)
    into = chunk = 0 if recv is None else address_of(recv)
    if op is not None and algorithm != "inline":
        own = call.ranges(node.size)[node.rank]
        if recv is None:  # not the root: its chunk of the result stays here until it is fetched
            assert send is not None
            chunk = address_of(engine.channel.scratch("chunk", len(own), send.dtype))
            into = chunk - own.start * item  # others look for the chunk where it would lie in the whole
        elif not scatters:
            chunk += own.start * item
    sent = node.find(source, send.nbytes) if send is not None and algorithm != "inline" else (-1, 0)
    received = node.find(into, recv.nbytes) if recv is not None and algorithm != "inline" else (-1, 0)
    table = call.table()
    _pack_places(engine.block, 8 * layout.SEND, source, *sent, into, *received)
    _pack_call(
        engine.block,
        8 * layout.FROM,
        *(source, into, chunk, METHODS[algorithm], 0 if table is None else address_of(table)),
        (0 if op is None else layout.REDUCES) | (0 if scatters else layout.GATHERS),
        0 if op is None else op.code,
        engine.size if op is not None and op.mean else 0,
        call.root if call.verb == "Reduce" else -1,
        item,
        0 if op is None or send is None else arithmetic(send.dtype),
    )
    yield from engine.kernel(lambda: collective.run(*engine.addresses, node.reads, engine.spins))
    del table  # the kernel has read it to here


def agree(engine: "Engine") -> "Program":
    """Exchanges lines only, between the ranks of the node.

    Raises:
        AgreedError: lines differ or some rank's arguments are wrong.
    """
    engine.block[layout.METHOD] = layout.AGREE
    engine.block[layout.ITEM] = 1
    yield from engine.kernel(lambda: collective.run(*engine.addresses, False, engine.spins))


def copy_own(call: Call, own: range) -> None:
    """Copies this rank's block to its place in the result, unless it is there."""
    if call.send is not None and call.recv is not None and len(own):
        place = call.recv[own.start : own.stop]
        if address_of(place) != address_of(call.send):
            place[:] = call.send
