"""The GPUs of one host as peers: memory that each rank has mapped, exchanged once over MPI."""

import contextlib
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.env import switch
from psgd.collectives.peers import choose
from psgd.kernels.device.peers import common, launch

_HANDLE_BYTES = 64
_UUID_BYTES = 16
ORDER, VERDICT, WAITING = 0, 1, 2
"""Words of `host`: the host's order to end calls, what ended the first one, the number of a call that waits."""


class PeerGroup:
    """One rank's share of it: its region, and everybody's as mapped here.

    Calls of a group run one after the other, in one order on all ranks, each on whatever stream. All methods may be
    called by any thread: a new thread's current GPU is the first one, and not this rank's.

    Attributes:
        rank: of this process.
        size: number of ranks, 2 to 8.
        device: number of this rank's GPU; arrays lie there.
        host: pinned words, which kernels read and write.
        head: what each kernel is told of the group; regions as mapped here.
        wide: the slots of large calls are there.
    """

    def __init__(self, comm: MPI.Intracomm, device: int) -> None:
        self.rank, self.size, self.device = comm.rank, comm.size, device
        self._comm = comm
        self._mapped: list[int] = []
        self._own: list[int] = []
        self._sizes = choose.layout(comm.size)
        with cupy.cuda.Device(device):
            self._state = cupy.zeros(4, np.uint64)
            memory = cupy.cuda.alloc_pinned_memory(64)
        self.host: NDArray[np.uint32] = np.frombuffer(memory, np.uint32, 16)
        self.host[:] = 0
        self.head = launch.group_type(comm.size)()
        self.head.state, self.head.host = self._state.data.ptr, memory.ptr
        self.head.rank = comm.rank
        self._last: tuple[int, Any] | None = None
        self._scratch: Any = None
        self.wide = False

    @classmethod
    def create(cls, comm: MPI.Intracomm, device: int) -> "PeerGroup | None":
        """Maps everybody's region; None on all ranks where some rank cannot. Collective, blocks.

        Args:
            comm: private, of ranks of one host.
            device: number of this rank's GPU among the visible ones.
        """
        wanted = switch("PSGD_PEERS")
        if not 2 <= comm.size <= common.MOST_RANKS:
            return None
        uuids = np.empty((comm.size, _UUID_BYTES + 1), np.uint8)
        mine = np.frombuffer(bytes(cupy.cuda.runtime.getDeviceProperties(device)["uuid"])[:_UUID_BYTES], np.uint8)
        comm.Allgather(np.append(mine, np.uint8(1 if wanted is None else 2 * wanted)), uuids)
        words = uuids[:, _UUID_BYTES]
        distinct = len({bytes(each) for each in uuids[:, :_UUID_BYTES]}) == comm.size
        if (words == 0).any() or (not distinct and not (words == 2).all()):
            return None
        group = cls(comm, device)
        if not group._share(choose.region_bytes(comm.size), group.head.base):
            group.close()
            return None
        return group

    def widen(self) -> bool:
        """Gets the slots of large calls, once; whether all ranks could. Collective, blocks."""
        if not self.wide:
            self.wide = self._share(choose.wide_bytes(self.size), self.head.wide)
        return self.wide

    def arguments(self, fingerprint: int, shape: int) -> Any:
        """The kernels' first argument, for a call that must agree in these words."""
        group = type(self.head).from_buffer_copy(self.head)
        group.fingerprint, group.shape = fingerprint, shape
        return group

    def function(self, kind: str, op: int, name: str) -> Any:
        """A kernel for elements of a kind and an operation; compiled the first time."""
        return launch.function(name, kind, op, self.size, tuple(self._sizes.items()), self.device)

    def scratch(self, nbytes: int) -> int:
        """The address of memory that is kept between calls; its contents are anything."""
        if self._scratch is None or self._scratch.nbytes < nbytes:
            with cupy.cuda.Device(self.device):
                self._scratch = cupy.empty(max(1, nbytes), np.uint8)
        return int(self._scratch.data.ptr)

    def follow(self, stream: int) -> None:
        """Has a stream wait for the group's call before, if that is on another one. To be called before a start."""
        if self._last is not None and self._last[0] != stream:
            cupy.cuda.runtime.streamWaitEvent(stream, self._last[1].ptr)

    def started(self, stream: int) -> Any:
        """Marks what was started on a stream as the group's last call; returns its event."""
        if self._last is None:
            self._last = stream, cupy.cuda.Event(disable_timing=True)
        elif self._last[0] != stream:
            self._last = stream, self._last[1]
        event = self._last[1]
        cupy.cuda.runtime.eventRecord(event.ptr, stream)
        return event

    @property
    def last(self) -> Any:
        """The event behind the group's last call."""
        assert self._last is not None
        return self._last[1]

    def order_end(self) -> None:
        """Has kernels that wait for peers end without data, now and in future calls, until `forgive`."""
        self.host[ORDER] = 1

    def forgive(self) -> int:
        """Takes that back and forgets the verdict, which it returns: 0, or what ended a call."""
        verdict = int(self.host[VERDICT])
        self.host[ORDER] = self.host[VERDICT] = 0
        return verdict

    def count_alike(self) -> None:
        """Gives all ranks the same number of calls so far. Collective, blocks."""
        with cupy.cuda.Device(self.device):
            cupy.cuda.runtime.deviceSynchronize()
            calls = self._state[:1].get()
            self._comm.Allreduce(MPI.IN_PLACE, calls, MPI.MAX)
            self._state[:1].set(calls)

    def close(self) -> None:
        """Unmaps and frees all regions. Collective: no rank frees what another has mapped."""
        runtime = cupy.cuda.runtime
        with cupy.cuda.Device(self.device):
            with contextlib.suppress(runtime.CUDARuntimeError):
                runtime.deviceSynchronize()
            for address in self._mapped:
                runtime.ipcCloseMemHandle(address)
            self._mapped = []
            self._comm.Barrier()
            for address in self._own:
                runtime.free(address)
            self._own = []

    def _share(self, nbytes: int, into: Any) -> bool:
        """Allocates memory, exchanges handles and maps everybody's; whether all ranks could."""
        with cupy.cuda.Device(self.device):  # what is mapped for another GPU is out of reach of this one's kernels
            return self._map(nbytes, into)

    def _map(self, nbytes: int, into: Any) -> bool:
        runtime = cupy.cuda.runtime
        mine = np.zeros(_HANDLE_BYTES + 1, np.uint8)
        try:
            own = runtime.malloc(nbytes)
            self._own.append(own)
            runtime.memset(own, 0, nbytes)
            runtime.deviceSynchronize()
            mine[:_HANDLE_BYTES] = np.frombuffer(runtime.ipcGetMemHandle(own), np.uint8)
            mine[_HANDLE_BYTES] = 1
        except runtime.CUDARuntimeError:
            own = 0
        handles = np.empty((self.size, mine.size), np.uint8)
        self._comm.Allgather(mine, handles)
        fine = bool(handles[:, _HANDLE_BYTES].all())
        if fine:
            try:
                for rank, handle in enumerate(handles):
                    if rank != self.rank:
                        self._mapped.append(runtime.ipcOpenMemHandle(handle[:_HANDLE_BYTES].tobytes()))
                        into[rank] = self._mapped[-1]
            except runtime.CUDARuntimeError:
                fine = False
            into[self.rank] = own
        word = np.array([fine], np.uint8)
        self._comm.Allreduce(MPI.IN_PLACE, word, MPI.MIN)
        return bool(word[0])
