"""The ranks of a communicator that share a node's memory, and the memory that they registered with each other."""

import os
import select
import threading
import weakref
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi import shared_memory
from psgd.collectives.mpi.agreement import together
from psgd.collectives.mpi.node import address_of, all_agree, share_memory
from psgd.collectives.shm import layout


class Node:
    """This rank's view of its node.

    Attributes:
        ranks: the node's ranks, as numbered in the communicator, ascending.
        size: how many they are.
        rank: this rank's place among them.
        maps: for each registration the address of each rank's memory.
        reads: peers' private memory can be read.
        ranges: of this rank's registered memory: name, first address, the one behind the last.
    """

    def __init__(self, comm: MPI.Intracomm, ranks: list[int]) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.rank = ranks.index(comm.rank)
        self.reads = False
        self._comm = comm
        self._registered: dict[int, list[NDArray[np.uint8]]] = {}  # each rank's memory, by registration
        self.ranges: list[tuple[int, int, int]] = []
        self._dead: set[int] = set()
        self._processes: list[int] = []
        self._watched: dict[int, int] = {}  # rank by descriptor of its process
        self._poll = select.poll()
        self._gone: list[int] = []
        self._lock = threading.Lock()
        self._old_maps: list[NDArray[np.int64]] = []  # a kernel of another thread may still look at one
        self.maps = np.zeros((4, self.size), np.int64)

    @classmethod
    def create(cls, comm: MPI.Intracomm, ranks: list[int]) -> "Node | None":
        """Shares a region with each rank of the node, or finds that some rank of `comm` cannot. Collective, blocks."""
        node = cls(comm, ranks)
        if not all_agree(comm, shared_memory.enabled()) or node._register(2 * layout.REGION_BYTES) is None:
            return None
        node.reads = node._try_reading()
        return node

    def table(self, index: int, scratch: int) -> NDArray[np.int64]:
        """The words that kernels read.

        Args:
            index: 0 or 1: two calls can be under way at once, each in a region of its own.
            scratch: address of 3 FETCH_BYTES of this rank's own memory.
        """
        words = np.zeros(layout.REGIONS + 2 * self.size, np.int64)
        words[layout.SIZE] = self.size
        words[layout.RANK] = self.rank
        words[layout.SCRATCH] = scratch
        words[layout.REGIONS :][: self.size] = self.maps[0] + index * layout.REGION_BYTES
        words[layout.REGIONS + self.size :] = self._processes
        return words

    def register(self, nbytes: int) -> NDArray[np.uint8]:
        """Makes memory that all ranks of the node map. Collective over the communicator, blocks.

        Its pages belong to the caller until the returned array and all views of it are gone.

        Raises:
            MemoryError: some rank could not, on all ranks.
        """
        self._drop_dead()
        name = self._register(nbytes)
        if name is None:
            raise MemoryError(f"empty: {nbytes} bytes of shared memory are not available on every rank")
        # An array of its own, so that it ends when no view is left.
        own: Any = self._registered[name][self.rank]
        array = np.frombuffer(memoryview(own), np.uint8)
        start = int(self.maps[name, self.rank])
        self.ranges.append((name, start, start + nbytes))
        weakref.finalize(array, self._dead.add, name).atexit = False
        return array

    def adopt(self, other: "Node", places: list[int]) -> None:
        """Registers what `other` has registered. The same on all ranks; does not communicate.

        It stays mapped until `close`.

        Args:
            other: of the same processes and more.
            places: of this node's ranks among the other's.
        """
        for name, start, stop in other.ranges:
            made = self._name([other._registered[name][place] for place in places])
            self.ranges.append((made, start, stop))

    def use(self, comm: MPI.Intracomm) -> None:
        """Sets the communicator for later registrations: one of the same ranks."""
        self._comm = comm

    def find(self, address: int, nbytes: int) -> tuple[int, int]:
        """The registration that holds a range of this rank's memory and the offset in it, or (-1, 0)."""
        for name, start, stop in self.ranges:
            if start <= address and address + nbytes <= stop:
                return name, address - start
        return -1, 0

    def region(self, rank: int, index: int) -> NDArray[np.uint8]:
        """The memory of a rank's region, by its place in the node."""
        return self._registered[0][rank][index * layout.REGION_BYTES :][: layout.REGION_BYTES]

    def lost(self) -> list[int]:
        """The ranks whose processes have ended. Does not block."""
        with self._lock:
            if not self._watched and hasattr(os, "pidfd_open"):
                for rank, process in zip(self.ranks, self._processes, strict=True):
                    try:
                        file = os.pidfd_open(process)
                    except ProcessLookupError:
                        self._gone.append(rank)
                    except OSError:  # not allowed, or no descriptor left: nothing is known of it
                        pass
                    else:
                        self._watched[file] = rank
                        self._poll.register(file, select.POLLIN)
            return sorted({*self._gone, *(self._watched[file] for file, _ in self._poll.poll(0))})

    def close(self) -> None:
        """Lets go of all memory. Arrays that the caller still holds stay valid on this rank."""
        for file in self._watched:
            os.close(file)
        self._watched = {}
        self._registered.clear()
        self.ranges = []

    def _drop_dead(self) -> None:
        """Unmaps what no rank uses any more."""
        names = sorted(self._registered)
        alive = np.array([name not in self._dead for name in names], np.uint8)
        self._comm.Allreduce(MPI.IN_PLACE, alive, MPI.MAX)
        for name, used in zip(names, alive, strict=True):
            if not used:
                del self._registered[name]
                self._dead.discard(name)
                self.ranges = [each for each in self.ranges if each[0] != name]

    def _register(self, nbytes: int) -> int | None:
        """Shares memory between the node's ranks; returns its number, or None on all ranks where one could not."""
        memories, processes = share_memory(self._comm, self.ranks, nbytes)
        if memories is None:
            return None
        if not self._processes:
            self._processes = processes
        return self._name(memories)

    def _name(self, memories: list[NDArray[np.uint8]]) -> int:
        name = next(n for n in range(len(self._registered) + 1) if n not in self._registered)
        if name >= len(self.maps):
            self._old_maps.append(self.maps)
            self.maps = np.vstack([self.maps, np.zeros_like(self.maps)])
        self._registered[name] = memories
        self.maps[name] = [address_of(memory) for memory in memories]
        return name

    def _try_reading(self) -> bool:
        """Finds out whether every rank of the communicator can read its node's private memory."""
        from psgd.collectives.shm import direct

        secret = np.array([int.from_bytes(os.urandom(7), "little")], np.int64)
        everyone = np.empty((self._comm.size, 2), np.int64)
        self._comm.Allgather(np.array([address_of(secret), secret[0]], np.int64), everyone)
        got = np.zeros(1, np.int64)
        words = self.table(0, 0)
        table, to = address_of(words), address_of(got)

        def all_readable() -> bool:  # the first time it compiles, which takes memory
            return all(
                direct.readable(table, int(everyone[rank, 0]), to, int(everyone[rank, 1]), place)
                for place, rank in enumerate(self.ranks)
            )

        return all_agree(self._comm, together(self._comm, "Communicator", all_readable))
