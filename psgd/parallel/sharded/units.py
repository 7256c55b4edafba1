"""What is gathered at once: the layers of a stage, or equal parts of a vector of which nothing is known."""

from collections.abc import Sequence

from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.nn.stage import Stage

SMALLEST_BYTES = 1 << 16
"""Neighbouring layers are one unit up to this size: below it, a call's own cost shows. A larger layer is one by itself,
so no unit is larger than this and than the largest layer."""
BUCKET_BYTES = 1 << 20
"""Of a vector of which nothing is known."""


def of_stage(stage: Stage) -> tuple[range, ...]:
    """The units of psgd's layers: ranges of the vector, in order, none empty, that cover it.

    A parameter with several names belongs to the layer where the layout has its place.
    """
    sizes = [len(each) for each in stage.ready_ranges]
    groups = grouped(sizes, stage.dtype.itemsize)
    return tuple(range(stage.ready_ranges[g.start].start, stage.ready_ranges[g.stop - 1].stop) for g in groups)


def grouped(sizes: Sequence[int], itemsize: int) -> list[range]:
    """Which neighbouring layers make a unit: ranges of layers that cover all of them, each with parameters.

    Args:
        sizes: elements of each layer, 0 where it has none.
        itemsize: bytes of an element.
    """
    groups: list[range] = []
    start = held = 0
    for index, size in enumerate(sizes):
        if held and size and (held + size) * itemsize > SMALLEST_BYTES:
            groups.append(range(start, index))
            start, held = index, 0
        held += size
    if held:
        groups.append(range(start, len(sizes)))
    return groups


def of_bytes(size: int, itemsize: int, nbytes: int | None = None) -> tuple[range, ...]:
    """Near-equal units of a bare vector of `size` elements, none larger than `nbytes`, in whole cache lines."""
    count = max(1, -(-size * itemsize // (nbytes or BUCKET_BYTES)))
    return tuple(split(size, count, max(1, ALIGN_BYTES // itemsize)))
