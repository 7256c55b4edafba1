"""From a parsed call to a kernel and its arguments."""

import zlib
from ctypes import c_uint32, c_uint64
from typing import Any

import numpy as np

from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.node import address_of
from psgd.collectives.peers import choose
from psgd.collectives.peers.group import PeerGroup
from psgd.kernels.device.peers import elements, launch
from psgd.kernels.reduce import SUM

_SCATTER, _GATHER, _COPY = 1, 2, 4
_GATHERS = ("Allgather", "Allgatherv")
_PACK = 16


class PeerCall:
    """A kernel that is ready to be started, as often as one likes.

    Attributes:
        shape: of the kernel.
        words: the call, its signature, elements, extents and mark, for a report.
        keep: what must live as long: memory that it works on.
        copy: addresses and bytes of a copy that follows it, on the same stream; none where bytes are 0.
    """

    def __init__(
        self, start: launch.Launch, shape: choose.Shape, call: Call, sign: int, copy: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        self._start = start
        self.shape = shape
        self.words = call.verb, sign, call.count, call.shape, call.mark
        self.keep: object = call.job
        self.copy = copy

    def start(self, stream: int) -> None:
        """Starts it on a stream, given by its address."""
        self._start(self.shape.blocks, self.shape.threads, stream)


def takes(kind: str, op: Operation | None) -> bool:
    """Whether there is a kernel for elements of a kind and an operation; None moves them only."""
    return op is None or (op.code >= 0 and op.accepts(kind) and elements.knows(kind))


def fingerprint(sign: int, count: int) -> int:
    """The word by which kernels compare calls; never 0."""
    return zlib.crc32(np.array([sign, count], np.int64).tobytes()) | 1


def shape_of(ranks: int, call: Call) -> choose.Shape:
    """The kernel of a call."""
    if call.op is not None and call.verb in ("Allreduce", "Reduce"):
        return choose.reduction(ranks, call.job.nbytes)
    if call.verb == "Bcast":
        return choose.staged(ranks, -(-call.job.nbytes // (_PACK * ranks)))
    return choose.staged(ranks, -(-max(call.lengths, default=0) * call.itemsize // _PACK))


def prepare(group: PeerGroup, call: Call, sign: int) -> PeerCall:
    """Makes the kernel of a call, with all its arguments. Compiles what is new.

    Args:
        group: has the slots for large calls if this is one.
        call: of device arrays on the group's GPU.
        sign: its signature.
    """
    job, op = call.job, call.op
    shape = shape_of(group.size, call)
    kind = call.kind if op is not None else "uint8"
    code = SUM if op is None else op.code
    head = group.arguments(fingerprint(sign, call.count), call.mark & 0xFFFFFFFF)
    divisor = launch.number(kind, group.size if op is not None and op.mean else 0)
    source = 0 if call.send is None else address_of(call.send)
    into = 0 if call.recv is None else address_of(call.recv)
    function = group.function(kind, code, shape.kernel)
    if shape.kernel != "staged":
        values = [head, c_uint64(source), c_uint64(into), c_uint64(call.count), divisor]
        return PeerCall(launch.Launch(function, values), shape, call, sign)
    item = call.itemsize
    chunks = launch.chunks_type(group.size)()
    own, even, copy = into, 0, (0, 0, 0)
    if call.verb in ("Allreduce", "Reduce"):
        even, steps = call.count, _SCATTER | _GATHER
        own += item * _first_of(call.count, item, group)
    elif call.verb == "Bcast":
        even, steps = job.nbytes, _SCATTER | _GATHER | _COPY
        source = into
        own += _first_of(even, 1, group)
    else:
        starts = call.starts
        assert starts is not None
        chunks.start[:], chunks.length[:] = starts, call.lengths
        if op is None:
            steps = _GATHER
            own += item * starts[group.rank]
        else:
            steps = _SCATTER
            # The result must not overwrite what is still to be sent: this rank's own block of that is not.
            if job.aliased and into != source + item * starts[group.rank]:
                nbytes = call.lengths[group.rank] * item
                own = group.scratch(nbytes)
                copy = into, own, nbytes
    values = [
        *(head, c_uint64(source), c_uint64(into), c_uint64(own), c_uint64(even), chunks),
        *(c_uint32(steps), c_uint32(call.root), divisor, c_uint32(shape.piece)),
    ]
    return PeerCall(launch.Launch(function, values), shape, call, sign, copy)


def _first_of(count: int, item: int, group: PeerGroup) -> int:
    """The first element of this rank's chunk, as `even` of the kernels cuts an array."""
    width: Any = _PACK // item
    packs = -(-count // width)
    return int(min(count, group.rank * -(-packs // group.size) * width))
