"""A stage's units are counted from 0, in its own vector."""

from types import SimpleNamespace

import numpy as np

from psgd.parallel.sharded.pieces.stage_units import StageUnits
from psgd.parallel.sharded.slices import Slices


def test_units_of_the_second_stage():
    told = []
    vectors = [np.full(size, size) for size in (4, 3, 2)]
    exchange = SimpleNamespace(
        slices=Slices([range(4), range(4, 7), range(7, 9)], 2, 1),
        **{"params": vectors[0], "parameters": vectors, "gradients": vectors[::-1]},
        **{name: lambda *given, name=name: told.append((name, *given)) for name in ("arrive", "leave", "used")},
    )
    stage = StageUnits(exchange, 1, [range(3), range(3, 5)])
    assert [len(each) for each in stage.parameters] == [3, 2] and [len(each) for each in stage.gradients] == [3, 4]
    assert stage.slices.whole == 5 and stage.slices.rank == 1
    stage.arrive(1, True)
    stage.leave(0)
    stage.used(1)
    assert told == [("arrive", 2, True), ("leave", 1, False), ("used", 2)]
