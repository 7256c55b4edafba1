"""What the arguments of each collective mean: mpi4py's, turned into a Call.

Every function raises UsageError where arguments cannot be right whatever the other ranks pass.
"""

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.arguments import buffer_spec
from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.descriptor import fingerprint
from psgd.collectives.arguments.operations import AnyOp, Operation, resolve
from psgd.collectives.arguments.view import View
from psgd.collectives.mpi.node import address_of
from psgd.kernels import half
from psgd.kernels.errors import UsageError

_WORK: Any = 10_000  # steps that looking for an overlap of strided arrays may take


def allreduce(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: AnyOp) -> Call:
    """Allreduce on `size` ranks."""
    operation = resolve(op)
    recv = buffer_spec.single(recvbuf, "recvbuf", True)
    send = recv if _in_place(sendbuf) else buffer_spec.single(sendbuf, "sendbuf", False)
    _same(send, recv, recv.size, "recvbuf")
    _apart(send, recv)

    def on_host() -> Call:
        call = _reduction("Allreduce", operation, send, recv.flat, recv.size)
        call.shape, call.mark = recv.shape, fingerprint(recv.shape)
        _finish(call, recv)
        return call

    if _on_device(size, send, recv, operation):
        made: Call = _device().reduction("Allreduce", operation, send, recv, slice(0, recv.size), recv.size, on_host)
        return made
    return on_host()


def reduce(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: AnyOp, root: int) -> Call:
    """Reduce to `root`; `recvbuf` means nothing on other ranks."""
    operation = resolve(op)
    _check_root(root, size)
    if rank != root:
        if _in_place(sendbuf):
            raise UsageError("sendbuf: expected a buffer, got MPI.IN_PLACE, which only the root of Reduce may pass")
        send = buffer_spec.single(sendbuf, "sendbuf", False)
        call = _reduction("Reduce", operation, send, None, send.size)
    else:
        recv = buffer_spec.single(recvbuf, "recvbuf", True)
        send = recv if _in_place(sendbuf) else buffer_spec.single(sendbuf, "sendbuf", False)
        _same(send, recv, recv.size, "recvbuf")
        _apart(send, recv)
        call = _reduction("Reduce", operation, send, recv.flat, recv.size)
        _finish(call, recv)
    call.root = root
    return call


def reduce_scatter(
    size: int, rank: int, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: AnyOp
) -> Call:
    """Reduce_scatter: `recvcounts[r]` elements of the result go to rank r, by default equally many.

    `recvbuf` may be this rank's block of `sendbuf`: what others read there is theirs.
    """
    operation = resolve(op)
    recv = buffer_spec.single(recvbuf, "recvbuf", True)
    if recvcounts is None:
        if _in_place(sendbuf):
            raise UsageError("recvcounts: expected one count for each rank where sendbuf is MPI.IN_PLACE, got None")
        counts = [recv.size] * size
    else:
        counts = buffer_spec.counts(recvcounts, "recvcounts", size)
    return _scatter("Reduce_scatter", rank, sendbuf, recv, counts, operation)


def reduce_scatter_block(size: int, rank: int, sendbuf: Any, recvbuf: Any, op: AnyOp) -> Call:
    """Reduce_scatter_block: equally many elements to each rank."""
    operation = resolve(op)
    if _in_place(sendbuf):
        recv, n = buffer_spec.block(recvbuf, "recvbuf", size, True)
    else:
        recv = buffer_spec.single(recvbuf, "recvbuf", True)
        n = recv.size
    return _scatter("Reduce_scatter_block", rank, sendbuf, recv, [n] * size, operation)


def _scatter(verb: str, rank: int, sendbuf: Any, recv: View, counts: list[int], op: Operation) -> Call:
    total, own = sum(counts), counts[rank]
    if _in_place(sendbuf):
        if recv.size < total:
            raise UsageError(
                f"recvbuf: expected all {total} elements of the vector where sendbuf is MPI.IN_PLACE, "
                f"got {recv.size}; pass a buffer of the whole vector"
            )
        send = recv.part(0, total)
    else:
        send = buffer_spec.single(sendbuf, "sendbuf", False)
        _same(send, recv, total, "the sum of all counts")
        if recv.size < own:
            raise UsageError(f"recvbuf: expected at least {own} elements, got {recv.size}; pass a larger buffer")
        kept = recv.size == own and _is_block(recv.logical, send.logical, sum(counts[:rank]))
        if not kept and _overlap(send.logical, recv.logical):
            raise _overlapping(send.logical, recv.logical)
        recv.restrict([(0, own)])

    def on_host() -> Call:
        target = recv.flat[:own]
        # In place, this rank's result would overwrite what another rank still reads: it waits in memory of its own.
        into = np.empty_like(target) if _in_place(sendbuf) else target
        call = _reduction(verb, op, send, into, total, counts)
        if into is not target:
            call.finish.append(lambda: target.__setitem__(slice(None), into))
        _finish(call, recv)
        if verb == "Reduce_scatter":
            call.mark = fingerprint((0, *counts))
        return call

    if _on_device(len(counts), send, recv, op):
        made: Call = _device().reduction(verb, op, send, recv, slice(0, own), total, on_host, counts)
        return made
    return on_host()


def allgather(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Allgather: a block from each rank."""
    recv, n = buffer_spec.block(recvbuf, "recvbuf", size, True)
    starts = [r * n for r in range(size)]
    call = _gather("Allgather", rank, sendbuf, recv, starts, [n] * size)
    call.count, call.shape = n, (n,)
    return call


def allgatherv(size: int, rank: int, sendbuf: Any, recvbuf: Any) -> Call:
    """Allgatherv: blocks of the lengths and at the places that `recvbuf` gives."""
    recv, counts, starts = buffer_spec.vector(recvbuf, "recvbuf", size, True)
    call = _gather("Allgatherv", rank, sendbuf, recv, starts, counts)
    call.mark = fingerprint((0, *counts))
    call.count = sum(counts)
    call.shape = (call.count,)
    return call


def bcast(size: int, rank: int, buf: Any, root: int) -> Call:
    """Bcast from `root`."""
    _check_root(root, size)
    whole = buffer_spec.single(buf, "buf", rank != root)

    def on_host() -> Call:
        data = whole.flat.view(np.uint8)
        starts = [0] * size
        lengths = [0] * size
        lengths[root] = data.size
        call = Call(
            "Bcast",
            kind=whole.kind,
            root=root,
            send=data if rank == root else None,
            recv=data,
            starts=starts,
            lengths=lengths,
            count=whole.size,
            shape=whole.shape,
            mark=fingerprint(whole.shape),
        )
        call.copied = whole.copied
        if rank != root:
            _finish(call, whole)
        return call

    if _on_device(size, whole, whole, None):
        made: Call = _device().broadcast(whole, root, on_host)
        return made
    return on_host()


def barrier(size: int, rank: int) -> Call:
    """Barrier, which has no arguments."""
    return Call("Barrier")


def _gather(verb: str, rank: int, sendbuf: Any, recv: View, starts: list[int], counts: list[int]) -> Call:
    aliased = _in_place(sendbuf)
    if aliased:
        send = recv.part(starts[rank], counts[rank]) if recv.device is not None else recv
    else:
        send = buffer_spec.single(sendbuf, "sendbuf", False)
        _same(send, recv, counts[rank], "this rank's block of recvbuf")
        if _overlap(send.logical, recv.logical):
            aliased = _is_block(send.logical, recv.logical, starts[rank])
            if not aliased:
                raise _overlapping(send.logical, recv.logical)

    def on_host() -> Call:
        values = recv.flat[starts[rank] : starts[rank] + counts[rank]] if aliased else send.flat
        item = recv.flat.itemsize
        places, lengths = [item * start for start in starts], [item * n for n in counts]
        call = Call(
            verb,
            kind=recv.kind,
            send=values.view(np.uint8),
            recv=recv.flat.view(np.uint8),
            starts=places,
            lengths=lengths,
        )
        call.copied = recv.copied if aliased else send.copied
        _finish(call, recv)
        return call

    if _on_device(len(counts), send, recv, None):
        made: Call = _device().gather(verb, send, recv, starts, counts, on_host)
        return made
    return on_host()


def _finish(call: Call, recv: View) -> None:
    """Has a result that does not land in the caller's memory put there at the end of the call."""
    if recv.copied:
        call.finish.append(recv.write_back)


def _is_block(send: NDArray[Any], recv: NDArray[Any], start: int) -> bool:
    """Whether `send` is what lies in `recv` from element `start` on, in memory of the host or of one device."""
    plain = send.flags.c_contiguous and recv.flags.c_contiguous
    return plain and address_of(send) == address_of(recv) + start * recv.itemsize


def _on_device(size: int, send: View, recv: View, op: Operation | None) -> bool:
    """Whether GPUs do a call by themselves."""
    if size == 1 or send.device is None or recv.device is None:
        return False
    return bool(_device().takes(send, recv, op))


def _device() -> ModuleType:
    """What makes device calls: imported once a device array was passed, and CuPy was found."""
    from psgd.collectives.arguments import device_call

    return device_call


def _reduction(
    verb: str, op: Operation, send: View, into: NDArray[Any] | None, count: int, counts: list[int] | None = None
) -> Call:
    if not op.accepts(send.kind):
        raise UsageError(
            f"op: {op.name} is not defined for {send.kind}; pass another operation, or convert with .astype"
        )
    values, target = send.flat, into
    wide = send.kind in {"float16", "bfloat16"} and op.code >= 0
    if wide:
        values = half.widen(send.flat, send.kind)
        target = None if into is None else np.empty(into.size, np.float32)
    call = Call(
        verb,
        kind=send.kind,
        op=op,
        send=values,
        recv=target,
        starts=None if counts is None else [0, *itertools.accumulate(counts[:-1])],
        lengths=counts or (),
        count=count,
        shape=send.shape,
        mark=fingerprint(send.shape),
    )
    call.copied = wide or send.copied
    if wide and into is not None and target is not None:
        call.finish.append(lambda: half.narrow(into, target, send.kind))
    return call


def _in_place(buffer: Any) -> bool:
    return buffer is MPI.IN_PLACE


def _check_root(root: Any, size: int) -> None:
    if not isinstance(root, (int, np.integer)) or not 0 <= root < size:
        raise UsageError(f"root: expected a rank from 0 to {size - 1}, got {root!r}")


def _same(send: View, recv: View, count: int, where: str) -> None:
    if send.kind != recv.kind:
        raise UsageError(
            f"sendbuf and recvbuf: expected one dtype, got {send.kind} and {recv.kind}; convert one with .astype"
        )
    if send.size != count:
        raise UsageError(f"sendbuf: expected {count} elements, as in {where}, got {send.size} (shape {send.shape})")


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.size == 0 or b.size == 0 or not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=_WORK))
    except np.exceptions.TooHardError:
        return True


def _apart(send: View, recv: View) -> None:
    """The same memory is in place, whatever it is called; a part of it is an error."""
    a, b = send.logical, recv.logical
    same = a.strides == b.strides or (a.flags.c_contiguous and b.flags.c_contiguous)
    if send is not recv and _overlap(a, b) and not (same and address_of(a) == address_of(b)):
        raise _overlapping(a, b)


def _overlapping(send: NDArray[Any], recv: NDArray[Any]) -> UsageError:
    apart = address_of(recv) - address_of(send)
    return UsageError(
        f"sendbuf and recvbuf: expected separate memory, got overlapping ranges, {send.nbytes} and {recv.nbytes} bytes "
        f"long, the second beginning {apart} bytes after the first; pass MPI.IN_PLACE or a copy"
    )


VERBS: dict[str, Callable[..., Call]] = {
    "Allreduce": allreduce,
    "Reduce": reduce,
    "Reduce_scatter": reduce_scatter,
    "Reduce_scatter_block": reduce_scatter_block,
    "Allgather": allgather,
    "Allgatherv": allgatherv,
    "Bcast": bcast,
    "Barrier": barrier,
}
"""By mpi4py's name; each takes the number of ranks, this rank, and what the verb takes."""
