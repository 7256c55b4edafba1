"""What part of a flat vector each rank keeps: of every unit a near-equal range."""

import itertools
from collections.abc import Sequence

from psgd.collectives.mpi.split import split
from psgd.kernels.errors import UsageError


class Slices:
    """One rank's own vector: its ranges of all units, one after the other. The same numbers on every rank.

    A unit is what is gathered at once: a layer, or a bucket of a bare vector. It is cut into near-equal ranges
    in rank order, longer ones first: of a unit with fewer elements than ranks the last ones have none.

    Args:
        units: adjacent ranges that cover the vector from 0 on; an empty one is allowed.
        ranks: that share it.
        rank: whose vector this is.

    Attributes:
        units: as given.
        ranks, rank: as given.
        size: elements of this rank's own vector.
        whole: elements of the whole vector.
        own: this rank's range of the whole vector, for each unit; may be empty.

    Raises:
        UsageError: units that do not follow one another from 0, no ranks, or a rank that is none of them.
    """

    def __init__(self, units: Sequence[range], ranks: int, rank: int) -> None:
        if ranks < 1 or not 0 <= rank < ranks:
            raise UsageError(f"shard: expected a rank from 0 to {ranks - 1}, got {rank} of {ranks}")
        ends = [0, *(unit.stop for unit in units)]
        for unit, start in zip(units, ends, strict=False):
            if unit.step != 1 or unit.start != start or unit.stop < start:
                raise UsageError(f"shard: expected a unit that begins at {start}, where the last one ends, got {unit}")
        self.units = tuple(units)
        self.ranks, self.rank = ranks, rank
        self.whole = ends[-1]
        self._counts = tuple(tuple(map(len, split(len(unit), ranks))) for unit in units)
        self.own = tuple(
            range(start := unit.start + sum(counts[:rank]), start + counts[rank])
            for unit, counts in zip(units, self._counts, strict=True)
        )
        self._ends = (0, *itertools.accumulate(map(len, self.own)))
        self.size = self._ends[-1]

    def place(self, unit: int) -> slice:
        """Where this rank's range of a unit lies in its own vector."""
        return slice(self._ends[unit], self._ends[unit + 1])

    def counts(self, unit: int) -> tuple[int, ...]:
        """How many elements of a unit each rank keeps: those of an all-gather and of a reduce-scatter."""
        return self._counts[unit]

    def within(self, part: range) -> range:
        """Which elements of its own vector a rank has of a range that lies in one unit; may be empty."""
        unit = next(number for number, each in enumerate(self.units) if part.start in each)
        own, start = self.own[unit], self.place(unit).start - self.own[unit].start
        first, stop = max(part.start, own.start), min(part.stop, own.stop)
        return range(start + first, start + max(first, stop))

    def of(self, rank: int) -> "Slices":
        """Those of another rank."""
        return Slices(self.units, self.ranks, rank)
