"""All-gathers of units among ranks of one node, each of which reads the others' parts where they lie.

Parts change only in the optimizer's step, so that one barrier after it stands for the two of each collective: ranks
need not be at the same unit at the same time. N ranks, U elements: U (N - 1)/N are read, by `process_vm_readv`.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from psgd.collectives.mpi.node import address_of
from psgd.kernels.array import Array
from psgd.kernels.errors import PeerLostError
from psgd.parallel.sharded.gathers import Gathers
from psgd.parallel.sharded.slices import Slices
from psgd.runtime.device_vectors import on_device

if TYPE_CHECKING:
    from psgd.collectives import Communicator

_LONGEST = 1 << 30  # a single call moves less than 2 GiB


class _Span(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def possible(comm: "Communicator", params: Array) -> bool:
    """Whether all ranks can read each other's vectors. The same on all ranks."""
    return not on_device(params) and comm.size > 1 and comm.reads_private_memory


class NearGathers(Gathers):
    """As `Gathers`; creating is collective, blocks. Where `possible`.

    Args:
        comm: the ranks that share the vector.
        slices: of this rank.
        own: for each unit this rank's part of it; may lie in its place in the whole unit. Never moved.
        whole: for each unit where it is to be.
    """

    def __init__(self, comm: "Communicator", slices: Slices, own: Sequence[Array], whole: Sequence[Array]) -> None:
        self.nbytes, self._comm, self._changed = 0, comm, True
        self._each = [int(w.nbytes - o.nbytes) for w, o in zip(whole, own, strict=True)]
        self._started = [False] * len(own)
        self._read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._read.restype = ctypes.c_ssize_t
        addresses = np.zeros((comm.size, 1 + len(own)), np.int64)
        mine = np.array([os.getpid(), *(address_of(part) if part.size else 0 for part in own)], np.int64)
        comm.Allgather(mine, addresses)
        self._copies = [
            (unit[_place(slices, number)], part) if not np.shares_memory(unit, part) else None
            for number, (unit, part) in enumerate(zip(whole, own, strict=True))
        ]
        self._reads: list[list[tuple[int, int, int, int]]] = []  # of each unit: process, from, to, bytes
        for number, unit in enumerate(whole):
            counts, to, found = slices.counts(number), address_of(unit), []
            for rank, count in enumerate(counts):
                nbytes = count * unit.itemsize
                if rank != comm.rank and nbytes:
                    found.append((int(addresses[rank, 0]), int(addresses[rank, 1 + number]), to, nbytes))
                to += nbytes
            self._reads.append(found)

    def changed(self) -> None:
        self._changed = True

    def start(self, unit: int) -> None:
        self._started[unit] = True
        self.nbytes += self._each[unit]

    def wait(self, unit: int) -> None:
        if not self._started[unit]:
            return
        self._started[unit] = False
        if self._changed:
            self._comm.Barrier()
            self._changed = False
        if (copy := self._copies[unit]) is not None:
            copy[0][...] = copy[1]
        for process, source, to, nbytes in self._reads[unit]:
            for at in range(0, nbytes, _LONGEST):
                self._fetch(process, source + at, to + at, min(_LONGEST, nbytes - at))

    def free(self) -> None:
        """Nothing: the memory is others'."""

    def _fetch(self, process: int, source: int, to: int, nbytes: int) -> None:
        into, where = _Span(to, nbytes), _Span(source, nbytes)
        if self._read(process, ctypes.byref(into), 1, ctypes.byref(where), 1, 0) != nbytes:
            self._comm.Barrier()  # raises, as the rank has ended
            raise PeerLostError(f"the memory of process {process} cannot be read: {os.strerror(ctypes.get_errno())}")


def _place(slices: Slices, unit: int) -> slice:
    """Where this rank's part lies in a whole unit."""
    own, start = slices.own[unit], slices.units[unit].start
    return slice(own.start - start, own.stop - start)
