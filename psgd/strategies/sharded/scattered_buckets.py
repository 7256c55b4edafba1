"""Buckets of a gradient that are reduced to their owners: each rank gets its own part of each, in its place."""

from typing import TYPE_CHECKING

from psgd.parallel.sharded.order import behind
from psgd.parallel.sharded.slices import Slices
from psgd.strategies.buckets import Buckets, Vector

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.collectives.fastpath.persistent import Prequest


class ScatteredBuckets(Buckets):
    """One worker's sum, of which its own slices are final once `reduce` or `wait` has returned. Creating is collective.

    Args:
        comm, like, steps: as of `Buckets`.

    Attributes:
        slices: of this rank; a bucket is a unit.
        nbytes: sent so far; all ranks together have received as many.
    """

    def __init__(self, comm: "Communicator", like: Vector, steps: int) -> None:
        self._behind, self.nbytes = behind(like), 0
        super().__init__(comm, like, steps)

    def _bound(self) -> "list[Prequest]":
        comm = self._comm
        self.slices = Slices(self.ranges, comm.size, comm.rank)
        self.own = [self.sum[part.start : part.stop] for part in self.slices.own]
        last = len(self.ranges) - 1
        return [
            comm.Reduce_scatter_init(part, self.own[last - bucket], self.slices.counts(last - bucket))
            for bucket, (_, part, _) in enumerate(self._buckets)
        ]

    def compile(self) -> None:
        for call in self._calls:
            call.run()

    def reduce(self) -> None:
        super().reduce()
        self._count(0)

    def _start(self, bucket: int) -> None:
        with self._behind():
            self._calls[bucket].Start()
        self._launched += 1
        self._count(bucket)

    def _count(self, bucket: int) -> None:
        own = self.own[len(self.own) - 1 - bucket]
        self.nbytes += self._buckets[bucket][1].nbytes - own.nbytes
