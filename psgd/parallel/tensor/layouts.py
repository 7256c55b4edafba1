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
    """

    axis: int = -1


@dataclass(frozen=True)
class Partial:
    """Every rank has a summand of the whole; they are summed in rank order."""


TensorLayout = Replicated | SplitAlong | Partial
REPLICATED, FEATURES, PARTIAL = Replicated(), SplitAlong(-1), Partial()


def shares(extent: int, ranks: int) -> list[range]:
    """Each rank's range of an axis, as equal as can be: longer ones first, and empty ones last if there are too few."""
    return split(extent, ranks)


def local_shape(layout: TensorLayout, shape: Shape, rank: int, ranks: int) -> Shape:
    """Shape of what a rank has of an array of `shape`."""
    if not isinstance(layout, SplitAlong):
        return shape
    local = list(shape)
    local[layout.axis] = len(shares(shape[layout.axis], ranks)[rank])
    return tuple(local)
