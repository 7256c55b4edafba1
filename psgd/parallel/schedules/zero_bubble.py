"""Zero bubble (ZB-H1): 1F1B with backward passes in two halves, the second of which fills the bubble.

Only X, the input's gradient, is waited for by another rank. W, the parameters' gradient, can come later, so a rank does
it while it would otherwise wait. With equal times of F, X and W, the bubble is a third of 1F1B's: (p - 1) of such times
where 1F1B has 3 (p - 1). No rank keeps more than min(m, p) microbatches, what 1F1B keeps on its first rank: of the
deferred ones, what W reads. Gradients are added from microbatch 0 to m - 1.

The programs come from playing the pipeline in steps of one F, X or W. F and X come in the order of 1F1B's F and B.
Where the next of them cannot be done yet, or would keep one microbatch too many, the rank does a W, if it has one.
"""

from psgd.parallel.schedules import one_f_one_b
from psgd.parallel.schedules.instruction import Instruction, Kind
from psgd.parallel.schedules.schedule import Schedule


def build(ranks: int, microbatches: int) -> Schedule:
    """Makes the schedule of one batch."""
    most = min(ranks, microbatches)
    last = Instruction("W", microbatches - 1)
    orders = one_f_one_b.build(ranks, microbatches).programs
    programs: list[list[Instruction]] = [[] for _ in range(ranks)]
    done = [{"F": 0, "X": 0, "W": 0} for _ in range(ranks)]
    while any(each["W"] < microbatches for each in done):
        before = [dict(each) for each in done]
        for rank, mine in enumerate(done):
            each = orders[rank][mine["F"] + mine["X"]] if mine["X"] < microbatches else last
            ready = {
                "F": (rank == 0 or before[rank - 1]["F"] > mine["F"]) and mine["F"] - mine["W"] < most,
                "B": rank == ranks - 1 or before[rank + 1]["X"] > mine["X"],
                "W": False,
            }
            kind: Kind = "W"
            if ready[each.kind]:
                kind = "F" if each.kind == "F" else "X"
            elif mine["W"] == mine["X"]:
                continue
            programs[rank].append(Instruction(kind, mine[kind]))
            mine[kind] += 1
    return Schedule(
        name="zero-bubble",
        ranks=ranks,
        microbatches=microbatches,
        chunks=1,
        programs=tuple(map(tuple, programs)),
        gradient_order="ascending",
        in_flight_limit=(most,) * ranks,
    )
