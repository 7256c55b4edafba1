"""Collectives in a node's shared memory: inline with the descriptors, through slots, or directly between the arrays.

inline: at most 64 KiB a rank, one step. chunked: likewise, two steps (shm/chunked.py). slots: any private memory,
copied through the cache (shm/slots.py). direct: registered memory, or private memory that peers can read: read where it
lies (shm/direct.py). All combine values in rank order, so their results have the same bits.
"""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.arguments.call import Call
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm import layout
from psgd.collectives.shm.registered import Node
from psgd.collectives.shm.shared_channel import SharedChannel
from psgd.kernels.reduce import arithmetic

_WHOLE = ("Allreduce", "Reduce")
_pack_places: Any = struct.Struct("6q").pack_into
_pack_call: Any = struct.Struct("11q").pack_into
METHODS = {"inline": layout.INLINE, "chunked": layout.CHUNKED, "slots": layout.SLOTS, "direct": layout.DIRECT}
BEHIND = ("inline", "chunked")
"""Those whose data travels behind the descriptors, where it must fit."""
PATHS = {
    layout.INLINE: ("inline", "shared"),
    layout.CHUNKED: ("chunked", "shared"),
    layout.SLOTS: ("slots", "shared"),
    layout.DIRECT: ("direct", "readv"),
    layout.REGISTERED: ("direct", "registered"),
}


def fits_inline(call: Call) -> bool:
    """Whether the data of every rank fits behind its descriptor. The same on all ranks."""
    return (call.nbytes if call.op is not None else call.longest) <= layout.INLINE_BYTES


def run(shared: SharedChannel, call: Call, algorithm: str) -> Steps:
    """Runs a call whose descriptor is filled; exchanges the descriptors first.

    What all ranks registered is taken directly unless it travels inline; where private memory cannot be read, slots
    stand in for `direct`.

    Raises:
        AgreedError: descriptors differ or some rank's arguments are wrong.
        PeerLostError: a peer's memory cannot be read any more.
    """
    table = fill(shared.node, shared.block, call, algorithm, shared.scratch)
    yield from shared.run(shared.node.reads)
    del table  # the kernel has read it to here


def fill(
    node: Node,
    block: NDArray[np.int64],
    call: Call,
    algorithm: str,
    scratch: Callable[[int, DTypeLike], NDArray[Any]],
) -> object:
    """Writes the words of a call behind its descriptor.

    Args:
        node: of this rank.
        block: CALL_WORDS words, of which the first are the descriptor.
        call: not changed.
        algorithm: one of METHODS.
        scratch: gives memory of a number of elements and a dtype, to live until the call is done.

    Returns:
        What else must live until the call is done.
    """
    send, recv, op, item = call.send, call.recv, call.op, call.itemsize
    scatters = op is not None and call.verb not in _WHOLE
    source = 0 if send is None else address_of(send)
    into = chunk = 0 if recv is None else address_of(recv)
    if op is not None and algorithm not in BEHIND:
        own = call.ranges(node.size)[node.rank]
        if recv is None:  # not the root: its chunk of the result stays here until it is fetched
            assert send is not None
            chunk = address_of(scratch(len(own), send.dtype))
            into = chunk - own.start * item  # others look for the chunk where it would lie in the whole
        elif not scatters:
            chunk += own.start * item
    sent = node.find(source, send.nbytes) if send is not None and algorithm not in BEHIND else (-1, 0)
    received = node.find(into, recv.nbytes) if recv is not None and algorithm not in BEHIND else (-1, 0)
    table = call.table()
    _pack_places(block, 8 * layout.SEND, source, *sent, into, *received)
    _pack_call(
        block,
        8 * layout.FROM,
        *(source, into, chunk, METHODS[algorithm], 0 if table is None else address_of(table)),
        (0 if op is None else layout.REDUCES) | (0 if scatters else layout.GATHERS),
        0 if op is None else op.code,
        node.size if op is not None and op.mean else 0,
        call.root if call.verb == "Reduce" else -1,
        item,
        0 if op is None or send is None else arithmetic(send.dtype),
    )
    return table


def agree(shared: SharedChannel) -> Steps:
    """Exchanges descriptors only, between the ranks of the node.

    Raises:
        AgreedError: descriptors differ or some rank's arguments are wrong.
    """
    shared.block[layout.METHOD] = layout.AGREE
    shared.block[layout.ITEM] = 1
    yield from shared.run(False)


def copy_own(call: Call, own: range) -> None:
    """Copies this rank's block to its place in the result, unless it is there."""
    if call.send is not None and call.recv is not None and len(own):
        place = call.recv[own.start : own.stop]
        if address_of(place) != address_of(call.send):
            place[:] = call.send
