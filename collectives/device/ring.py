"""Reduce-scatter, all-gather and all-reduce round a ring of GPUs. Costs as of `psgd.collectives.algorithms.ring`.

Chunk: the part of the array that belongs to one rank at the end of the reduce-scatter. Segment: part k of each chunk.
A task does all steps of segment k by itself, one after the other, and several of them are under way, in lanes: while
one sums, others travel. The host only asks whether a transfer or a sum is done; it waits for neither.

Chunk c is ((x[c+1] op x[c+2]) op ...) op x[c], ranks modulo P, and the all-gather copies those bits: the same bits on
all ranks, and the same as those of the ring on the host.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.operations import Operation
from psgd.collectives.device.tasks import DeviceEvent, TaskSteps, in_lanes
from psgd.collectives.device.transport import Gpu, Transport
from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.collectives.mpi.wait import Steps

_NOTHING = DeviceEvent(True)


class Ring:
    """One rank's place in a ring.

    Args:
        gpu: this rank's.
        transport: to its neighbours.
        rank: its number.
        size: ranks, at least 2.
    """

    def __init__(self, gpu: Gpu, transport: Transport, rank: int, size: int) -> None:
        self._gpu, self._transport = gpu, transport
        self._rank, self._size = rank, size
        self._polls = (transport.poll, gpu.poll)

    def allreduce(self, send: NDArray[Any], recv: NDArray[Any], op: Operation) -> Steps:
        """Reduces over all ranks; the result has the same bits on all of them.

        Args:
            send: device memory, n elements; may be `recv`, else it is not changed.
            recv: n elements, for the result.
            op: the reduction.
        """
        parts = split(send.size, self._size, max(1, ALIGN_BYTES // send.itemsize))
        own = parts[self._rank]
        segment = self._segment(parts, send.itemsize)
        space = None if np.may_share_memory(send, recv) else recv

        def lane(k: int) -> TaskSteps:
            yield from self._reduce(k, send, recv[own.start : own.stop], parts, op, segment, space)
            yield from self._gather(k, recv, parts, segment)

        yield from self._in_lanes(parts, segment, lane)

    def reduce_scatter(self, send: NDArray[Any], recv: NDArray[Any], parts: Sequence[range], op: Operation) -> Steps:
        """Reduces over all ranks; each keeps its own chunk.

        Args:
            send: device memory, all chunks; not changed where `recv` is not part of it.
            recv: `len(parts[rank])` elements, for the result.
            parts: the chunk of each rank: consecutive elements of `send`, of any lengths.
            op: the reduction.
        """
        segment = self._segment(parts, send.itemsize)
        yield from self._in_lanes(parts, segment, lambda k: self._reduce(k, send, recv, parts, op, segment, None))

    def allgather(self, recv: NDArray[Any], parts: Sequence[range]) -> Steps:
        """Gathers everyone's chunk on all ranks.

        Args:
            recv: device memory; this rank's chunk is there on entry, the others are written.
            parts: the chunk of each rank: elements of `recv` that do not overlap.
        """
        segment = self._segment(parts, recv.itemsize)
        yield from self._in_lanes(parts, segment, lambda k: self._gather(k, recv, parts, segment))

    def _in_lanes(self, parts: Sequence[range], segment: int, lane: Callable[[int], TaskSteps]) -> Steps:
        count = -(-max(len(part) for part in parts) // segment)
        return in_lanes(count, self._transport.lanes, lane, self._polls)

    def _segment(self, parts: Sequence[range], itemsize: int) -> int:
        """Elements of a segment, the same on all ranks; whole cache lines."""
        transport, lanes = self._transport, self._transport.lanes
        longest = max(len(part) for part in parts) * itemsize
        pieces = max(min(lanes, longest // transport.least), -(-longest // transport.largest), 1)
        if pieces > lanes:
            pieces += -pieces % lanes  # no lane is idle at the end
        nbytes = -(-longest // pieces)
        return max(1, -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES // itemsize)

    def _reduce(
        self,
        k: int,
        send: NDArray[Any],
        recv: NDArray[Any],
        parts: Sequence[range],
        op: Operation,
        segment: int,
        space: NDArray[Any] | None,
    ) -> TaskSteps:
        """Segment k's way through a reduce-scatter; sums land in `space`, each in its place, or in scratch."""
        rank, size, gpu = self._rank, self._size, self._gpu
        own = parts[rank]
        cut = _cut(parts[(rank - 1) % size], k, segment)
        data = send[cut]
        for hop in range(size - 1):
            cut = _cut(parts[(rank - 2 - hop) % size], k, segment)
            if space is not None:
                landing = space[cut]
            else:
                landing = self._landing(k, hop, segment, send.dtype)[: cut.stop - cut.start]
            came = self._receive(k, landing)
            sent = self._send(k, data)
            yield came
            if landing.size:
                last = hop == size - 2
                out = recv[cut.start - own.start : cut.stop - own.start] if last else landing
                yield gpu.combine(op, out, landing, send[cut], size if last else 0)
            yield sent
            data = landing

    def _gather(self, k: int, recv: NDArray[Any], parts: Sequence[range], segment: int) -> TaskSteps:
        """Segment k's way through an all-gather."""
        rank, size = self._rank, self._size
        for hop in range(size - 1):
            came = self._receive(k, recv[_cut(parts[(rank - 1 - hop) % size], k, segment)])
            sent = self._send(k, recv[_cut(parts[(rank - hop) % size], k, segment)])
            yield came
            yield sent

    def _landing(self, k: int, hop: int, segment: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Scratch for one segment: what has landed is sent on in the next step, so two take turns."""
        name = f"lane {k % self._transport.lanes} {hop % 2}"
        return self._gpu.scratch(name, segment * dtype.itemsize).view(dtype)

    def _send(self, k: int, data: NDArray[Any]) -> DeviceEvent:
        return self._transport.send(self._gpu, k % self._transport.lanes, data) if data.size else _NOTHING

    def _receive(self, k: int, into: NDArray[Any]) -> DeviceEvent:
        return self._transport.receive(self._gpu, k % self._transport.lanes, into) if into.size else _NOTHING


def _cut(part: range, k: int, segment: int) -> slice:
    """Segment k of a chunk; empty where the chunk is too short."""
    start = min(part.stop, part.start + k * segment)
    return slice(start, min(part.stop, start + segment))
