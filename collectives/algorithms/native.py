"""MPI's own collectives on flat arrays, for any size and with this package's conventions for in-place calls.

Steps and bytes are the MPI library's affair. Calls block, inside MPI. MPI counts elements and displacements in 32 bits,
so arrays of more than `CHUNK` elements go in several calls, one for each piece of at most `CHUNK` elements; where
counts differ by rank, one for each piece of each rank's block. Arrays are 1-D and contiguous.
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
    if not blocking:
        yield from _start(comm, call)
        return
    send, recv, op, counts = call.send, call.recv, call.op, list(call.lengths)
    if call.verb == "Reduce":
        assert send is not None and op is not None
        reduce(comm, send, recv, op, call.root)
        return
    assert recv is not None
    if call.verb == "Bcast":
        bcast(comm, recv, call.root)
        return
    assert send is not None
    if call.verb == "Allgather":
        allgather(comm, send, recv)
    elif op is None:
        allgatherv(comm, send, recv, counts, list(call.starts or ()))
    elif call.verb == "Allreduce":
        allreduce(comm, send, recv, op)
    else:
        reduce_scatter(comm, send, recv, counts, op)


def _start(comm: MPI.Intracomm, call: Call) -> Steps:
    send, recv, op, counts = call.send, call.recv, call.op, list(call.lengths)
    if call.verb == "Reduce":
        assert send is not None and op is not None
        yield from start_reduce(comm, send, recv, op, call.root)
        return
    assert recv is not None
    if call.verb == "Bcast":
        yield from start_bcast(comm, recv, call.root)
        return
    assert send is not None
    if call.verb == "Allgather":
        yield from start_allgather(comm, send, recv)
    elif op is None:
        yield from start_allgatherv(comm, send, recv, counts, list(call.starts or ()))
    elif call.verb == "Allreduce":
        yield from start_allreduce(comm, send, recv, op)
    else:
        yield from start_reduce_scatter(comm, send, recv, counts, op)


def allreduce(comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> None:
    """Reduces `send` into `recv` on all ranks; both have n elements and may be the same memory."""
    in_place = _overlap(send, recv)
    for cut in _pieces(recv.size):
        comm.Allreduce(MPI.IN_PLACE if in_place else send[cut], recv[cut], op.mpi)
    op.finish(recv, comm.size)


def reduce_scatter(
    comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any], counts: Sequence[int], op: Operation
) -> None:
    """Reduces over all ranks; each keeps its own block.

    Args:
        comm: the ranks.
        send: `sum(counts)` elements, block by block.
        recv: `counts[rank]` elements, for the result; may lie anywhere in `send`.
        counts: elements of each rank's block.
        op: the reduction.
    """
    starts = [0, *accumulate(counts)]
    into = np.empty_like(recv) if _overlap(send, recv) else recv  # MPI's in-place call means another place
    if starts[-1] <= CHUNK:
        comm.Reduce_scatter(send, into, list(counts), op.mpi)
        op.finish(into, comm.size)
    else:
        for root, count in enumerate(counts):
            block = send[starts[root] : starts[root] + count]
            reduce(comm, block, into if comm.rank == root else None, op, root)
    if into is not recv:
        recv[:] = into


def allgather(comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any]) -> None:
    """Gathers n elements from each rank; `recv` has P n, and `send` may be this rank's block of it."""
    if recv.size > CHUNK:
        displs = [rank * send.size for rank in range(comm.size)]
        allgatherv(comm, send, recv, [send.size] * comm.size, displs)
    else:
        comm.Allgather(MPI.IN_PLACE if _overlap(send, recv) else _bits(send), _bits(recv))


def allgatherv(
    comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any], counts: Sequence[int], displs: Sequence[int]
) -> None:
    """Gathers everyone's block on all ranks.

    Args:
        comm: the ranks.
        send: `counts[rank]` elements; may be this rank's block of `recv`, else outside it.
        recv: takes rank r's block from element `displs[r]` on; what lies between blocks is left alone.
        counts: elements of each rank's block.
        displs: where each block starts; blocks do not overlap.
    """
    in_place = _overlap(send, recv)
    if max((d + n for d, n in zip(displs, counts, strict=True)), default=0) <= CHUNK:
        bits = _bits(recv)
        comm.Allgatherv(MPI.IN_PLACE if in_place else _bits(send), [bits, (list(counts), list(displs))])
        return
    for root, (count, start) in enumerate(zip(counts, displs, strict=True)):
        block = recv[start : start + count]
        if root == comm.rank and not in_place:
            block[:] = send
        bcast(comm, block, root)


def bcast(comm: MPI.Intracomm, data: NDArray[Any], root: int) -> None:
    """Copies the root's n elements to all ranks; `data` is read on the root and written on the others."""
    bits = _bits(data)
    for cut in _pieces(data.size):
        comm.Bcast(bits[cut], root)


def reduce(comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any] | None, op: Operation, root: int) -> None:
    """Reduces n elements to the root; `recv` is None elsewhere, and on the root it may be `send`."""
    in_place = recv is not None and _overlap(send, recv)
    for cut in _pieces(send.size):
        comm.Reduce(MPI.IN_PLACE if in_place else send[cut], None if recv is None else recv[cut], op.mpi, root)
    if recv is not None:
        op.finish(recv, comm.size)


def barrier(comm: MPI.Intracomm) -> None:
    """Returns once all ranks have called it."""
    comm.Barrier()


def start_allreduce(comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> Steps:
    """As allreduce, without blocking."""
    in_place = _overlap(send, recv)
    for cut in _pieces(recv.size):
        yield comm.Iallreduce(MPI.IN_PLACE if in_place else send[cut], recv[cut], op.mpi).Test
    op.finish(recv, comm.size)


def start_reduce_scatter(
    comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any], counts: Sequence[int], op: Operation
) -> Steps:
    """As reduce_scatter, without blocking."""
    starts = [0, *accumulate(counts)]
    into = np.empty_like(recv) if _overlap(send, recv) else recv
    if starts[-1] <= CHUNK:
        yield comm.Ireduce_scatter(send, into, list(counts), op.mpi).Test
        op.finish(into, comm.size)
    else:
        for root, count in enumerate(counts):
            block = send[starts[root] : starts[root] + count]
            yield from start_reduce(comm, block, into if comm.rank == root else None, op, root)
    if into is not recv:
        recv[:] = into


def start_allgather(comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any]) -> Steps:
    """As allgather, without blocking."""
    if recv.size > CHUNK:
        displs = [rank * send.size for rank in range(comm.size)]
        yield from start_allgatherv(comm, send, recv, [send.size] * comm.size, displs)
    else:
        yield comm.Iallgather(MPI.IN_PLACE if _overlap(send, recv) else _bits(send), _bits(recv)).Test


def start_allgatherv(
    comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any], counts: Sequence[int], displs: Sequence[int]
) -> Steps:
    """As allgatherv, without blocking."""
    in_place = _overlap(send, recv)
    if max((d + n for d, n in zip(displs, counts, strict=True)), default=0) <= CHUNK:
        into = [_bits(recv), (list(counts), list(displs))]
        yield comm.Iallgatherv(MPI.IN_PLACE if in_place else _bits(send), into).Test
        return
    for root, (count, start) in enumerate(zip(counts, displs, strict=True)):
        block = recv[start : start + count]
        if root == comm.rank and not in_place:
            block[:] = send
        yield from start_bcast(comm, block, root)


def start_bcast(comm: MPI.Intracomm, data: NDArray[Any], root: int) -> Steps:
    """As bcast, without blocking."""
    bits = _bits(data)
    for cut in _pieces(data.size):
        yield comm.Ibcast(bits[cut], root).Test


def start_reduce(comm: MPI.Intracomm, send: NDArray[Any], recv: NDArray[Any] | None, op: Operation, root: int) -> Steps:
    """As reduce, without blocking."""
    in_place = recv is not None and _overlap(send, recv)
    for cut in _pieces(send.size):
        yield comm.Ireduce(
            MPI.IN_PLACE if in_place else send[cut], None if recv is None else recv[cut], op.mpi, root
        ).Test
    if recv is not None:
        op.finish(recv, comm.size)


def _pieces(n: int) -> Iterator[slice]:
    """Slices of at most CHUNK elements; one, empty, where there is nothing, since the call is collective still."""
    return (slice(piece.start, piece.stop) for piece in segments(n, CHUNK) or [range(0)])


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether MPI would call two arrays aliased: they share elements, or start at one address with none to share."""
    return np.shares_memory(a, b) or a.ctypes.data == b.ctypes.data


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """What is only moved, as unsigned integers where MPI may lack the type: bool and 16-bit floats."""
    return array.view(f"u{array.itemsize}") if array.dtype.char in "?e" else array
