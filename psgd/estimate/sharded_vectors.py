"""What a rank of a sharded run has of the model's vectors, and the buffers in which units are whole for a while."""

from collections.abc import Collection, Sequence

from psgd.estimate.strategy_vectors import ACCUMULATED, GRADIENTS, PARAMETERS, STATE
from psgd.nn.stage import Stage

UNDER_WAY = "units under way"


def of_stage(stage: Stage, shard: int, ranks: int, state: int, steps: int = 1) -> dict[str, int]:
    """Bytes by name of the rank that has most, of psgd's layers.

    Args:
        stage: or a model, on no vector.
        shard: 1 to 3, what is shared: the optimizer's state, gradients too, parameters too.
        ranks: that share it.
        state: vectors of the update rule's state.
        steps: whose gradients make one update.
    """
    from psgd.parallel.sharded import by_unit, units

    ranges = units.of_stage(stage)
    alone = {unit for others in by_unit.shared_units(stage, ranges) for unit in others}
    return rows(ranges, stage.dtype.itemsize, shard, ranks, state, steps, alone)


def of_vector(size: int, itemsize: int, ranks: int, state: int, steps: int = 1) -> dict[str, int]:
    """The same of a vector of which nothing is known: of its optimizer's state each rank has a part."""
    from psgd.parallel.sharded import units

    return rows(units.of_bytes(size, itemsize), itemsize, 1, ranks, state, steps)


def rows(
    units: Sequence[range],
    itemsize: int,
    shard: int,
    ranks: int,
    state: int,
    steps: int = 1,
    alone: Collection[int] = (),
) -> dict[str, int]:
    """The same of given units, some of which have a buffer of their own where parameters are shared."""
    from psgd.collectives.mpi.split import ALIGN_BYTES
    from psgd.parallel.sharded.slices import Slices
    from psgd.parallel.sharded.unit_buffers import arriving, assign, places

    slices = Slices(units, ranks, 0)
    whole, own, align = slices.whole * itemsize, slices.size * itemsize, max(1, ALIGN_BYTES // itemsize)

    def buffers(those: Collection[int]) -> int:
        return places(slices, assign(len(units), those), align)[1] * itemsize

    under_way = {1: 0, 2: buffers(()), 3: buffers(()) + buffers(alone)}[shard]
    if shard > 1 and steps > 1:
        under_way += arriving(slices, assign(len(units)), align)[1] * itemsize
    found = {
        PARAMETERS: own if shard == 3 else whole,
        GRADIENTS: whole if shard == 1 else own,
        STATE: state * own,
        UNDER_WAY: under_way,
        ACCUMULATED: whole if shard == 1 and steps > 1 else 0,
    }
    return {name: number for name, number in found.items() if number}
