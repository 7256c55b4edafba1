"""How one array lies on several ranks: replicated, split along an axis, or as summands."""

from dataclasses import dataclass

from psgd.collectives.mpi.split import split
from psgd.nn.layer import Shape


@dataclass(frozen=True)
class Replicated:
    """Every rank has the whole, with the same bits."""


@dataclass(frozen=True)
class SplitAlong:
    """Every rank has a range of one axis, in rank order.

    Attributes:
        axis: of a sample or of a parameter, counted from the first or, below 0, from the last.
        block: so many neighbours stay together, as the features of a head do.
    """

    axis: int = -1
    block: int = 1

    def shares(self, extent: int, ranks: int) -> list[range]:
        """Each rank's range of the axis, as equal as can be: longer ones first, and empty ones last if need be."""
        return split(extent, ranks, self.block)


@dataclass(frozen=True)
class Partial:
    """Every rank has a summand of the whole; they are summed in rank order."""


TensorLayout = Replicated | SplitAlong | Partial
REPLICATED, FEATURES, PARTIAL = Replicated(), SplitAlong(-1), Partial()


def local_shape(layout: TensorLayout, shape: Shape, rank: int, ranks: int) -> Shape:
    """Shape of what a rank has of an array of `shape`."""
    if not isinstance(layout, SplitAlong):
        return shape
    local = list(shape)
    local[layout.axis] = len(layout.shares(shape[layout.axis], ranks)[rank])
    return tuple(local)
