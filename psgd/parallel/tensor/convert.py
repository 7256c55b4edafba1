"""From one layout to another: all-reduce, all-gather, reduce-scatter, slice, each with the buffers that it needs.

Samples are (n, ...), n up to the batch that the buffers were made for, and the same on all ranks. When it runs, a
conversion allocates no array. On a GPU it is put on the current stream where the ranks' GPUs are peers.
"""

import math
from abc import ABC, abstractmethod

from mpi4py import MPI

from psgd.collectives import Communicator
from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Room, Shape
from psgd.parallel.tensor.layouts import Partial, Replicated, SplitAlong, TensorLayout, local_shape


class Conversion(ABC):
    """One way between two layouts.

    Attributes:
        source: (batch, ...) where the caller writes what is to be converted; None where any array may be passed.
    """

    source: Array = None

    @abstractmethod
    def __call__(self, x: Array) -> Array:
        """Converts samples: collective over the ranks that share them, except a slice; blocks on the host.

        Args:
            x: the first n of `source`, or (n, ...), contiguous, which is not written.

        Returns:
            (n, ...), a buffer that the next call overwrites, or x itself.
        """


def conversion(comm: Communicator, source: TensorLayout, target: TensorLayout, shape: Shape, room: Room) -> Conversion:
    """Makes one. Collective, since the memory that ranks reduce in is theirs together.

    Args:
        comm: the ranks.
        source: layout of what is converted.
        target: layout of the result: never `Partial`, and from one split to another there is no way.
        shape: of a whole sample.
        room: how many samples, of which dtype, where.

    Raises:
        UsageError: no such way.
        MemoryError: some rank is out of memory; on all ranks.
    """
    if source == target and not isinstance(source, Partial):
        return _Same()
    if isinstance(source, Partial) and isinstance(target, Replicated):
        return _AllReduce(comm, shape, room)
    if isinstance(source, Partial) and isinstance(target, SplitAlong):
        return _ReduceScatter(comm, target, shape, room)
    if isinstance(source, SplitAlong) and isinstance(target, Replicated):
        return _AllGather(comm, source, shape, room)
    if isinstance(source, Replicated) and isinstance(target, SplitAlong):
        return _Slice(comm, target, shape, room)
    raise UsageError(f"tensor: expected a way from one layout to another, got {source} to {target}")


def _shared(comm: Communicator, room: Room, *shape: int) -> Array:
    """Memory in which the ranks of a node reduce without copies; on a GPU, or where it is only counted, plain."""
    if not room.on_host:
        return room.xp.empty(shape, room.dtype)
    if getattr(room.xp, "counts", False):
        return getattr(room.xp, "apart", room.xp).empty(shape, room.dtype)  # no pool has such memory
    return comm.empty(shape, room.dtype)


class _Same(Conversion):
    def __call__(self, x: Array) -> Array:
        return x


class _AllReduce(Conversion):
    def __init__(self, comm: Communicator, shape: Shape, room: Room) -> None:
        self.source, self._comm = _shared(comm, room, room.batch, *shape), comm
        self._run = comm.Allreduce if room.on_host else comm.Allreduce_enqueue

    def __call__(self, x: Array) -> Array:
        self._run(MPI.IN_PLACE, x)
        return x


class _Blocks:
    """Where each rank's range of an axis lies, in samples and as blocks one after another."""

    def __init__(self, comm: Communicator, cut: SplitAlong, shape: Shape) -> None:
        ranges = cut.shares(shape[cut.axis], comm.size)
        self.shapes = [local_shape(cut, shape, rank, comm.size) for rank in range(comm.size)]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        before = (slice(None),) * (1 + cut.axis % len(shape))
        self.places = [(*before, slice(each.start, each.stop)) for each in ranges]

    def of(self, vector: Array, n: int) -> list[tuple[tuple[slice, ...], Array]]:
        """For each rank its place in samples, and its block of `vector` seen as n samples."""
        found, start = [], 0
        for place, shape, size in zip(self.places, self.shapes, self.sizes, strict=True):
            found.append((place, vector[start : start + n * size].reshape(n, *shape)))
            start += n * size
        return found


class _Slice(Conversion):
    def __init__(self, comm: Communicator, cut: SplitAlong, shape: Shape, room: Room) -> None:
        blocks = _Blocks(comm, cut, shape)
        self._place, self._mine = blocks.places[comm.rank], room.empty(*blocks.shapes[comm.rank])

    def __call__(self, x: Array) -> Array:
        mine = self._mine[: len(x)]
        mine[...] = x[self._place]
        return mine


class _AllGather(Conversion):
    def __init__(self, comm: Communicator, cut: SplitAlong, shape: Shape, room: Room) -> None:
        self._comm, self._blocks = comm, _Blocks(comm, cut, shape)
        self._vector, self._whole = _shared(comm, room, room.batch * math.prod(shape)), room.empty(*shape)

    def __call__(self, x: Array) -> Array:
        n = len(x)
        blocks = self._blocks
        counts = [n * size for size in blocks.sizes]
        vector, whole = self._vector[: sum(counts)], self._whole[:n]
        self._comm.Allgatherv(x.reshape(-1), [vector, counts])
        for place, block in blocks.of(vector, n):
            whole[place] = block
        return whole


class _ReduceScatter(Conversion):
    def __init__(self, comm: Communicator, cut: SplitAlong, shape: Shape, room: Room) -> None:
        self._comm, self._blocks = comm, _Blocks(comm, cut, shape)
        self.source = room.empty(*shape)
        self._vector = _shared(comm, room, room.batch * math.prod(shape))
        self._mine = room.empty(*self._blocks.shapes[comm.rank])

    def __call__(self, x: Array) -> Array:
        n = len(x)
        blocks = self._blocks
        counts = [n * size for size in blocks.sizes]
        vector, mine = self._vector[: sum(counts)], self._mine[:n]
        for place, block in blocks.of(vector, n):
            block[...] = x[place]
        self._comm.Reduce_scatter(vector, mine.reshape(-1), counts)
        return mine
