"""The buffers in which units are whole for a while: two that all take turns in, so that one is filled beside another.

A unit that is in use beside others, as one with a weight that has two names, has a buffer of its own. All are parts of
one allocation, made once.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from psgd.collectives.mpi.split import ALIGN_BYTES
from psgd.kernels.array import Array
from psgd.parallel.sharded.slices import Slices
from psgd.runtime.device_vectors import registered

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class UnitBuffers:
    """Creating is collective, blocks.

    Args:
        comm: the ranks that share the vector; on a node they read each other's buffers.
        slices: of this rank.
        like: an array of the dtype and device.
        alone: units with a buffer of their own.

    Attributes:
        of: for each unit the number of its buffer.
        units: for each unit its buffer, as long as the unit.
        nbytes: of all buffers.
    """

    def __init__(self, comm: "Communicator", slices: Slices, like: Array, alone: Collection[int] = ()) -> None:
        self.of = assign(len(slices.units), alone)
        starts, size = places(slices, self.of, max(1, ALIGN_BYTES // like.dtype.itemsize))
        memory = registered(comm, like, size)
        self.nbytes = int(memory.nbytes)
        self.units = tuple(
            memory[starts[slot] : starts[slot] + len(unit)] for slot, unit in zip(self.of, slices.units, strict=True)
        )


class ArrivingParts:
    """Where a rank's parts of units arrive that share buffers, before they are added. Creating is collective, blocks.

    Args:
        comm: the ranks that share the vector.
        slices: of this rank.
        like: an array of the dtype and device.
        of: for each unit the number of its buffer, as `UnitBuffers.of`.

    Attributes:
        units: for each unit memory as long as this rank's part of it.
        nbytes: of all; the same on all ranks.
    """

    def __init__(self, comm: "Communicator", slices: Slices, like: Array, of: Sequence[int]) -> None:
        starts, size = arriving(slices, of, max(1, ALIGN_BYTES // like.dtype.itemsize))
        memory = registered(comm, like, size)
        self.nbytes = int(memory.nbytes)
        self.units = tuple(
            memory[starts[slot] : starts[slot] + len(part)] for slot, part in zip(of, slices.own, strict=True)
        )


def arriving(slices: Slices, of: Sequence[int], align: int) -> tuple[dict[int, int], int]:
    """Where each memory of `ArrivingParts` begins, in elements, and the size of all; the first rank has most."""
    return _laid_out([slices.counts(unit)[0] for unit in range(len(slices.units))], of, align)


def assign(units: int, alone: Collection[int] = ()) -> tuple[int, ...]:
    """The number of each unit's buffer: those that take turns alternate between 0 and 1, others have their own."""
    own = {unit: 2 + number for number, unit in enumerate(sorted(alone))}
    turns = iter([unit for unit in range(units) if unit not in own])
    taken = {unit: number % 2 for number, unit in enumerate(turns)}
    return tuple(own[unit] if unit in own else taken[unit] for unit in range(units))


def places(slices: Slices, slots: Collection[int], align: int) -> tuple[dict[int, int], int]:
    """Where each buffer begins, in elements, and the size of all: each is as large as its largest unit."""
    return _laid_out([len(unit) for unit in slices.units], slots, align)


def _laid_out(lengths: Collection[int], slots: Collection[int], align: int) -> tuple[dict[int, int], int]:
    sizes: dict[int, int] = {}
    for slot, length in zip(slots, lengths, strict=True):
        sizes[slot] = max(sizes.get(slot, 0), length)
    starts, size = {}, 0
    for slot in sorted(sizes):
        starts[slot] = size
        size += -(-sizes[slot] // align) * align
    return starts, size
