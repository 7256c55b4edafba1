"""Proves of a schedule, without ranks, that it is complete, in order, within its memory, and without deadlock."""

from collections import defaultdict

from psgd.parallel.schedules.instruction import Instruction, destination, source
from psgd.parallel.schedules.rehearsal import Cell, ScheduleFault, rehearse
from psgd.parallel.schedules.schedule import Program, Schedule, alive

Channel = tuple[int, int, int, int, str]


def check(schedule: Schedule) -> list[Cell]:
    """Checks all that a schedule promises.

    That each microbatch passes each stage once forward and, if it trains, once backward, whole or in two halves, in
    this order; that gradients are added in the order that it states; that messages from one stage to another are needed
    in the order in which they are made, so that a link can be a queue; that no more microbatches are in flight than it
    says; that steps are taken where they may be; and that it ends.

    Returns:
        The instructions with unit times, from `rehearse`.

    Raises:
        ScheduleFault: the first of these that is not so.
    """
    name = schedule.name
    if len(schedule.programs) != schedule.ranks or len(schedule.in_flight_limit) != schedule.ranks:
        raise ScheduleFault(f"{name}: expected {schedule.ranks} programs and limits")
    for rank, program in enumerate(schedule.programs):
        where = f"{name}: rank {rank}"
        for chunk in range(schedule.chunks):
            _complete(where, [each for each in program if each.chunk == chunk and each.kind != "U"], schedule)
        _steps(where, program, schedule)
        if any(not 0 <= each.chunk < schedule.chunks for each in program):
            raise ScheduleFault(f"{where}: expected chunks from 0 to {schedule.chunks - 1}")
        limit = schedule.in_flight_limit[rank]
        if alive(program) > limit:
            raise ScheduleFault(f"{where}: expected at most {limit} microbatches in flight, got {alive(program)}")
    made, needed = _messages(schedule)
    for channel in made.keys() | needed.keys():
        if made[channel] != needed[channel]:
            raise ScheduleFault(f"{name}: {channel}: made as {made[channel]}, needed as {needed[channel]}")
    return rehearse(schedule)


def _complete(where: str, program: list[Instruction], schedule: Schedule) -> None:
    """Checks one chunk of one rank: every pass once, each half after the one that it needs, gradients in order."""
    at: dict[tuple[str, int], int] = {}
    for index, each in enumerate(program):
        if (each.kind, each.microbatch) in at:
            raise ScheduleFault(f"{where}: {each} twice")
        at[each.kind, each.microbatch] = index
    ascending = list(range(schedule.microbatches))
    backward = [] if schedule.gradient_order == "none" else ascending
    whole = {k for kind, k in at if kind == "B"}
    wanted = {("F", k) for k in ascending} | {("B", k) for k in whole}
    wanted |= {(kind, k) for k in backward if k not in whole for kind in ("X", "W")}
    if at.keys() != wanted:
        raise ScheduleFault(f"{where}: missing or too much: {sorted(at.keys() ^ wanted)}")
    for k in backward:
        order = [at[kind, k] for kind in ("F", "B", "X", "W") if (kind, k) in at]
        if order != sorted(order):
            raise ScheduleFault(f"{where}: microbatch {k}: expected F before B, or F, X and W")
    added = [each.microbatch for each in program if each.kind in ("B", "W")]
    if added != (backward[::-1] if schedule.gradient_order == "descending" else backward):
        raise ScheduleFault(f"{where}: expected gradients added {schedule.gradient_order}, got {added}")


def _steps(where: str, program: Program, schedule: Schedule) -> None:
    """Checks U: none where the whole batch has one step; else in order, and all gradients in one at the end."""
    added = taken = -1
    for each in program:
        if each.kind in ("B", "W"):
            added = each.microbatch
        if each.kind == "U":
            if schedule.flushes or not taken < each.microbatch <= added:
                raise ScheduleFault(f"{where}: {each}: a step that may not be here")
            taken = each.microbatch
    if not schedule.flushes and taken != schedule.microbatches - 1:
        raise ScheduleFault(f"{where}: no step with the gradients after microbatch {taken}")


def _messages(schedule: Schedule) -> tuple[dict[Channel, list[int]], dict[Channel, list[int]]]:
    """Returns the microbatches that go from stage to stage, as made, and as needed."""
    made: dict[Channel, list[int]] = defaultdict(list)
    needed: dict[Channel, list[int]] = defaultdict(list)
    for rank, program in enumerate(schedule.programs):
        for each in program:
            goes = destination(each, rank, schedule.ranks, schedule.chunks)
            if goes is not None:
                made[rank, each.chunk, goes[0], goes[1], goes[2]].append(each.microbatch)
            comes = source(each, rank, schedule.ranks, schedule.chunks)
            if comes is not None:
                needed[comes[0], comes[1], rank, each.chunk, comes[2]].append(each.microbatch)
    return made, needed
