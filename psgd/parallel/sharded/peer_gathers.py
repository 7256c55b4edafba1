"""All-gathers of units among GPUs of one host, which copy the others' parts from where they lie.

Copies are made by engines of the GPU that compute nothing, so they go on beside kernels at the full speed of the link.
As in `near_gathers` parts change only in the optimizer's step: one small call of all GPUs after it, put on the stream,
stands for those of each gather.
"""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psgd.collectives.mpi.env import switch
from psgd.kernels.array import Array
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.order import SideStream, ordered
from psgd.parallel.sharded.slices import Slices

if TYPE_CHECKING:
    from psgd.collectives import Communicator

_HANDLE_BYTES = 64


class PeerGathers(Gathers):
    """As `Gathers`; `create` makes it.

    Args:
        comm: the ranks that share the vector.
        slices: of this rank.
        own: for each unit this rank's part of it, which is not where the whole unit is to be.
        whole: for each unit where it is to be.
        side: the stream of the exchanges.
        vectors: each rank's own vector, as it is mapped here.
    """

    def __init__(
        self,
        comm: "Communicator",
        slices: Slices,
        own: Sequence[Array],
        whole: Sequence[Array],
        side: SideStream,
        vectors: "Sequence[_Mapped]",
    ) -> None:
        import cupy

        self.nbytes, self._side, self._changed = 0, side, True
        self._vectors = list(vectors)
        self._each = [int(w.nbytes - o.nbytes) for w, o in zip(whole, own, strict=True)]
        self._events = [side.event() for _ in own]
        self._started = [False] * len(own)
        self._copies = _copies(slices, own, whole, [each.vector for each in vectors], comm.rank)
        self._runtime = cupy.cuda.runtime
        self._current = cupy.cuda.get_current_stream
        word = cupy.zeros(2, np.float32)
        self._meeting = ordered(side, [comm.Allreduce_init(word[:1], word[1:])])[0]

    def changed(self) -> None:
        self._changed = True

    def start(self, unit: int) -> None:
        self._started[unit] = True
        self.nbytes += self._each[unit]
        with self._side():
            if self._changed:
                self._meeting.Start()
                self._meeting.Wait()
                self._changed = False
            stream, how = self._current().ptr, self._runtime.memcpyDefault
            for to, source, nbytes in self._copies[unit]:
                self._runtime.memcpyAsync(to, source, nbytes, how, stream)
            self._events[unit].record()

    def wait(self, unit: int) -> None:
        if self._started[unit]:
            self._started[unit] = False
            self._side.follow(self._events[unit])

    def free(self) -> None:
        """Ends it: the GPU copies no more, and the others' memory is no longer mapped for it."""
        self._side.synchronize()
        self._meeting.Free()
        _unmap(self._vectors)
        self._vectors = []


def create(
    comm: "Communicator", slices: Slices, params: Array, own: Sequence[Array], whole: Sequence[Array], side: Any
) -> PeerGathers | None:
    """Maps all ranks' vectors; None, on all ranks, where some rank cannot. Collective, blocks.

    Args:
        comm: the ranks that share the vector.
        slices: of this rank.
        params: this rank's own vector.
        own: for each unit this rank's part of it.
        whole: for each unit where it is to be.
        side: of the exchanges; None is returned where it is no stream.
    """
    if not isinstance(side, SideStream) or comm.size == 1 or comm.nodes > 1:
        return None
    mine = np.zeros(_HANDLE_BYTES + 8, np.uint8)
    fine = switch("PSGD_PEERS") is not False and _export(params, mine)
    handles = np.zeros((comm.size, mine.size + 1), np.uint8)
    comm.Allgather(np.append(mine, np.uint8(fine)), handles)
    if not handles[:, -1].all():
        return None
    found = [_Mapped(0, 0) if rank == comm.rank else _map(handle[:-1]) for rank, handle in enumerate(handles)]
    vectors = [each for each in found if each is not None]
    mapped = np.zeros(comm.size, np.uint8)
    comm.Allgather(np.array([len(vectors) == comm.size], np.uint8), mapped)
    if not mapped.all():
        _unmap(vectors)
        return None
    return PeerGathers(comm, slices, own, whole, side, vectors)


def _copies(
    slices: Slices, own: Sequence[Array], whole: Sequence[Array], vectors: Sequence[int], rank: int
) -> list[list[tuple[int, int, int]]]:
    """Of each unit: to, from, bytes. Each rank begins with the next one's, so that not all read from one."""
    ranks = [Slices(slices.units, slices.ranks, each) for each in range(slices.ranks)]
    found = []
    for unit, into in enumerate(whole):
        item, to, places = into.itemsize, int(into.data.ptr), []
        for each, count in enumerate(slices.counts(unit)):
            source = vectors[each] + item * ranks[each].place(unit).start
            places.append((to, source if each != rank else int(own[unit].data.ptr), count * item))
            to += count * item
        places = places[rank + 1 :] + places[: rank + 1]
        found.append([place for place in places if place[2]])
    return found


def _export(params: Array, into: np.ndarray[Any, Any]) -> bool:
    """Writes by what other processes open the memory that a vector lies in, and where in it; whether it can be."""
    from cupy.cuda import runtime

    base, size = ctypes.c_size_t(), ctypes.c_size_t()
    driver = ctypes.CDLL("libcuda.so.1")
    at = ctypes.c_size_t(int(params.data.ptr))
    if not params.size or driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), at):
        return False
    try:
        into[:_HANDLE_BYTES] = np.frombuffer(runtime.ipcGetMemHandle(base.value), np.uint8)
    except runtime.CUDARuntimeError:
        return False
    into[_HANDLE_BYTES:].view(np.int64)[0] = at.value - base.value
    return True


class _Mapped(NamedTuple):
    """Addresses of another rank's memory here, and of its vector in it; 0 of this rank's own, which is not mapped."""

    base: int
    vector: int


def _map(handle: np.ndarray[Any, Any]) -> _Mapped | None:
    """Maps another rank's vector; None where it is out of reach."""
    from cupy.cuda import runtime

    try:
        base = int(runtime.ipcOpenMemHandle(handle[:_HANDLE_BYTES].tobytes()))
    except runtime.CUDARuntimeError:
        return None
    return _Mapped(base, base + int(handle[_HANDLE_BYTES:].copy().view(np.int64)[0]))


def _unmap(vectors: Sequence[_Mapped]) -> None:
    """CUDA counts how often memory is mapped, so that what others map stays."""
    from cupy.cuda import runtime

    for each in vectors:
        if each.base:
            runtime.ipcCloseMemHandle(each.base)
