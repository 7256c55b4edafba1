"""MPI's own collectives on flat arrays, for any size and with this package's conventions for in-place calls.

Steps and bytes are the MPI library's affair. MPI counts elements and displacements in 32 bits, so arrays of more than
`CHUNK` elements go in several calls, one for each piece of at most `CHUNK` elements; where counts differ by rank, one
for each piece of each rank's block. Arrays are 1-D and contiguous. All ranks must have compared their descriptors
before: inside MPI a rank that waits for another's call waits for ever, and unlike arguments are not noticed.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.split import segments
from psgd.collectives.mpi.wait import Steps

CHUNK = 2**30


def run(comm: MPI.Intracomm, call: Call, blocking: bool) -> Steps:
    """Carries out a call of any verb.

    Args:
        comm: private.
        call: on host memory.
        blocking: MPI may block.
    """
    mpi = Native(comm, blocking)
    send, recv, op, counts = call.send, call.recv, call.op, list(call.lengths)
    if call.verb == "Reduce":
        assert send is not None and op is not None
        yield from mpi.reduce(send, recv, op, call.root)
        return
    assert recv is not None
    if call.verb == "Bcast":
        yield from mpi.bcast(recv, call.root)
        return
    assert send is not None
    if call.verb == "Allgather":
        yield from mpi.allgather(send, recv)
    elif op is None:
        yield from mpi.allgatherv(send, recv, counts, list(call.starts or ()))
    elif call.verb == "Allreduce":
        yield from mpi.allreduce(send, recv, op)
    else:
        yield from mpi.reduce_scatter(send, recv, counts, op)


class Native:
    """MPI's verbs as steps, which never yield where MPI may block.

    Args:
        comm: the ranks.
        blocking: MPI's blocking verbs are called, else its non-blocking ones.
    """

    def __init__(self, comm: MPI.Intracomm, blocking: bool) -> None:
        self._comm = comm
        self._blocking = blocking

    def allreduce(self, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> Steps:
        """Reduces `send` into `recv` on all ranks; both have n elements and may be the same memory."""
        in_place = _overlap(send, recv)
        for cut in _pieces(recv.size):
            yield from self._call("Allreduce", MPI.IN_PLACE if in_place else send[cut], recv[cut], op.mpi)
        op.finish(recv, self._comm.size)

    def reduce_scatter(self, send: NDArray[Any], recv: NDArray[Any], counts: Sequence[int], op: Operation) -> Steps:
        """Reduces over all ranks; each keeps its own block.

        Args:
            send: `sum(counts)` elements, block by block.
            recv: `counts[rank]` elements, for the result; may lie anywhere in `send`.
            counts: elements of each rank's block.
            op: the reduction.
        """
        starts = [0, *accumulate(counts)]
        into = np.empty_like(recv) if _overlap(send, recv) else recv  # MPI's in-place call means another place
        if starts[-1] <= CHUNK:
            yield from self._call("Reduce_scatter", send, into, list(counts), op.mpi)
            op.finish(into, self._comm.size)
        else:
            for root, count in enumerate(counts):
                block = send[starts[root] : starts[root] + count]
                yield from self.reduce(block, into if self._comm.rank == root else None, op, root)
        if into is not recv:
            recv[:] = into

    def allgather(self, send: NDArray[Any], recv: NDArray[Any]) -> Steps:
        """Gathers n elements from each rank; `recv` has P n, and `send` may be this rank's block of it."""
        if recv.size > CHUNK:
            ranks = range(self._comm.size)
            yield from self.allgatherv(send, recv, [send.size for _ in ranks], [rank * send.size for rank in ranks])
        else:
            yield from self._call("Allgather", MPI.IN_PLACE if _overlap(send, recv) else _bits(send), _bits(recv))

    def allgatherv(self, send: NDArray[Any], recv: NDArray[Any], counts: Sequence[int], displs: Sequence[int]) -> Steps:
        """Gathers everyone's block on all ranks.

        Args:
            send: `counts[rank]` elements; may be this rank's block of `recv`, else outside it.
            recv: takes rank r's block from element `displs[r]` on; what lies between blocks is left alone.
            counts: elements of each rank's block.
            displs: where each block starts; blocks do not overlap.
        """
        in_place = _overlap(send, recv)
        if max((d + n for d, n in zip(displs, counts, strict=True)), default=0) <= CHUNK:
            into = [_bits(recv), (list(counts), list(displs))]
            yield from self._call("Allgatherv", MPI.IN_PLACE if in_place else _bits(send), into)
            return
        for root, (count, start) in enumerate(zip(counts, displs, strict=True)):
            block = recv[start : start + count]
            if root == self._comm.rank and not in_place:
                block[:] = send
            yield from self.bcast(block, root)

    def bcast(self, data: NDArray[Any], root: int) -> Steps:
        """Copies the root's n elements to all ranks; `data` is read on the root and written on the others."""
        bits = _bits(data)
        for cut in _pieces(data.size):
            yield from self._call("Bcast", bits[cut], root)

    def reduce(self, send: NDArray[Any], recv: NDArray[Any] | None, op: Operation, root: int) -> Steps:
        """Reduces n elements to the root; `recv` is None elsewhere, and on the root it may be `send`."""
        in_place = recv is not None and _overlap(send, recv)
        for cut in _pieces(send.size):
            into = None if recv is None else recv[cut]
            yield from self._call("Reduce", MPI.IN_PLACE if in_place else send[cut], into, op.mpi, root)
        if recv is not None:
            op.finish(recv, self._comm.size)

    def _call(self, verb: str, *arguments: Any) -> Steps:
        if self._blocking:
            getattr(self._comm, verb)(*arguments)
        else:
            yield getattr(self._comm, f"I{verb.lower()}")(*arguments).Test


def _pieces(n: int) -> Iterator[slice]:
    """Slices of at most CHUNK elements; one, empty, where there is nothing, since the call is collective still."""
    return (slice(piece.start, piece.stop) for piece in segments(n, CHUNK) or [range(0)])


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether MPI would call two arrays aliased: they share elements, or start at one address with none to share."""
    return np.shares_memory(a, b) or a.ctypes.data == b.ctypes.data


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """What is only moved, as unsigned integers where MPI may lack the type: bool and 16-bit floats."""
    return array.view(f"u{array.itemsize}") if array.dtype.char in "?e" else array
