"""PipeDream: 1F1B that never flushes. A rank takes a step as soon as it has a gradient, amid the passes of others.

There is no bubble but at the start and the end of a run. In exchange a microbatch's forward passes use weights of other
versions on other ranks, and older ones than its gradient is applied to. A backward pass uses the weights of its own
forward pass, so its gradient is a true one, of these older weights: rank i keeps up to p - i versions ("stashed"
weights). Which version each pass uses follows from the program alone, not from time: runs repeat bit for bit, and
nothing has to be recorded.

2BW keeps two versions on each rank. A step has `every` microbatches, at least as many as ranks; the passes of step t
use the weights after t - 1 steps on every rank, one less than the newest: the delay is 1 everywhere.
"""

from psgd.kernels.errors import UsageError
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.one_f_one_b import in_turn
from psgd.parallel.schedules.schedule import Program, Schedule


def build(ranks: int, microbatches: int, every: int = 1) -> Schedule:
    """Makes the schedule of a whole run, with stashed weights.

    Args:
        ranks: of the pipeline.
        microbatches: of the run.
        every: microbatches of one step. The last step has what is left.
    """
    warmup = tuple(min(microbatches, ranks - rank) for rank in range(ranks))
    return Schedule(
        name="pipedream",
        ranks=ranks,
        microbatches=microbatches,
        chunks=1,
        programs=tuple(program(rank, ranks, microbatches, every) for rank in range(ranks)),
        gradient_order="ascending",
        in_flight_limit=warmup,
        flushes=False,
    )


def build_two_versions(ranks: int, microbatches: int, every: int) -> Schedule:
    """Makes the schedule of a whole run, with two versions of the weights.

    Raises:
        UsageError: a step has fewer microbatches than there are ranks: their passes would need a third version.
    """
    if every < ranks:
        raise UsageError(
            f"schedule pipedream-2bw: expected at least as many microbatches a step as ranks ({ranks}), got {every};"
            " pipedream has no such limit"
        )
    schedule = build(ranks, microbatches, every)
    return Schedule(
        name="pipedream-2bw",
        ranks=ranks,
        microbatches=microbatches,
        chunks=1,
        programs=schedule.programs,
        gradient_order="ascending",
        in_flight_limit=schedule.in_flight_limit,
        flushes=False,
    )


def versions(program: Program, every: int, two_versions: bool = False) -> list[int]:
    """Says which weights each microbatch's passes use on this rank.

    Returns:
        For each microbatch: after how many steps. Never decreasing.
    """
    found = []
    steps = 0
    for each in program:
        if each.kind == "F":
            found.append(max(0, each.microbatch // every - 1) if two_versions else steps)
        steps += each.kind == "U"
    return found


def kept(program: Program, used: list[int]) -> int:
    """Counts the most versions of the weights that a rank keeps at once: the newest, and those that a pass still needs.

    Args:
        program: of this rank.
        used: as `versions` returns.
    """
    steps = most = done = 0
    for each in program:
        steps += each.kind == "U"
        done += each.kind == "B"
        needed = {steps, *used[done:]} if done < len(used) else {steps}
        most = max(most, len({version for version in needed if version <= steps}))
    return most


def program(rank: int, ranks: int, microbatches: int, every: int) -> Program:
    """Returns one rank's program of `build` and of `build_two_versions`: in a long run, all would be much.

    Args:
        rank: whose.
        ranks: as `build`.
        microbatches: as `build`.
        every: as `build`.
    """
    whole: list[Instruction] = []
    for each in in_turn(min(microbatches, ranks - rank), microbatches):
        whole.append(each)
        if each.kind == "B" and ((each.microbatch + 1) % every == 0 or each.microbatch == microbatches - 1):
            whole.append(Instruction("U", each.microbatch))
    return tuple(whole)
