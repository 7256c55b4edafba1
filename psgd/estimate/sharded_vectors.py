"""What a rank of a sharded run has of the model's vectors, and the buffers in which units are whole for a while."""

import math
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


def of_pieces(
    stages: Sequence[Stage], shard: int, ranks: int, state: int, steps: int = 1, whole: bool = False
) -> dict[str, int]:
    """The same of a rank's stages of a pipeline, in stage 2 or 3.

    Args:
        stages: of one rank.
        shard: 2 or 3.
        ranks: that have the same stages.
        state: as `of_stage`.
        steps: as `of_stage`.
        whole: a batch's gradient is kept whole until it is complete.
    """
    from psgd.parallel.sharded import by_unit, units

    every: list[range] = []
    alone: set[int] = set()
    for stage in stages:
        own, first, start = units.of_stage(stage), len(every), every[-1].stop if every else 0
        alone |= {first + unit for others in by_unit.shared_units(stage, own) for unit in others}
        every += [range(start + each.start, start + each.stop) for each in own]
    return rows(every, stages[0].dtype.itemsize, shard, ranks, state, steps, alone, whole)


def largest_unit(stage: Stage) -> int:
    """Bytes of the largest unit's gradient, as its layers have it."""
    from psgd.parallel.sharded import units

    groups = units.grouped([len(each) for each in stage.ready_ranges], stage.dtype.itemsize)
    sizes = [
        sum(math.prod(spec.shape) for step in stage.steps[group.start : group.stop] for spec in step.specs)
        for group in groups
    ]
    return max(sizes, default=0) * int(stage.dtype.itemsize)


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
    whole_sum: bool = False,
    gradients_too: bool = False,
) -> dict[str, int]:
    """The same of given units, some of which have a buffer of their own where parameters are shared.

    With `whole_sum` gradients are not made in such buffers, but in a whole vector. With `gradients_too` those of the
    same units have a buffer of their own too.
    """
    from psgd.collectives.mpi.split import ALIGN_BYTES
    from psgd.parallel.sharded.slices import Slices
    from psgd.parallel.sharded.unit_buffers import arriving, assign, places

    slices = Slices(units, ranks, 0)
    whole, own, align = slices.whole * itemsize, slices.size * itemsize, max(1, ALIGN_BYTES // itemsize)

    def buffers(those: Collection[int]) -> int:
        return places(slices, assign(len(units), those), align)[1] * itemsize

    apart = alone if gradients_too else ()
    under_way = (0 if whole_sum or shard == 1 else buffers(apart)) + (buffers(alone) if shard == 3 else 0)
    if shard > 1 and steps > 1:
        under_way += arriving(slices, assign(len(units), apart), align)[1] * itemsize
    found = {
        PARAMETERS: own if shard == 3 else whole,
        GRADIENTS: whole if shard == 1 else own,
        STATE: state * own,
        UNDER_WAY: under_way,
        ACCUMULATED: whole if whole_sum or (shard == 1 and steps > 1) else 0,
    }
    return {name: number for name, number in found.items() if number}
