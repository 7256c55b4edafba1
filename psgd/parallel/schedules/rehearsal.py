"""A schedule run without ranks, on a model of messages that wait for both sides, and the times at which things happen.

The model is stricter than MPI has to be. Nothing is buffered on the way: a message moves once its sender has made it
and its receiver is at the instruction that needs it. Sends do not block: a rank goes on to its next instruction while
its messages wait. But a chunk has only as many buffers for outputs as microbatches may be in flight, and as
many, two at least, for input gradients; a buffer is used again only when its message has left. With `blocking_sends` a
rank instead waits for each message to leave, as `MPI_Ssend` does.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from psgd.parallel.schedules.instruction import Instruction, destination, source
from psgd.parallel.schedules.schedule import Schedule, alive

Cost = Callable[[int, Instruction], float]
UNIT: Mapping[str, float] = {"F": 1, "B": 1, "X": 1, "W": 1, "U": 0}
"""Times as lectures draw them: forward and backward passes take the same."""
DOUBLE: Mapping[str, float] = {"F": 1, "B": 2, "X": 1, "W": 1, "U": 0}
"""Times of dense layers: each half of a backward pass is as long as a forward pass."""

Key = tuple[int, int, str, int]
"""Of a message: the rank and chunk that receive it, its direction, and its microbatch."""


class ScheduleFault(Exception):
    """A schedule that no pipeline could run, or that is not what it says."""


@dataclass(frozen=True, slots=True)
class Cell:
    """When a rank did an instruction.

    Attributes:
        rank: of the pipeline.
        instruction: what it did.
        start: in the unit of the costs, or in seconds in a real run.
        stop: its end.
    """

    rank: int
    instruction: Instruction
    start: float
    stop: float


@dataclass
class _Rank:
    """How far a rank is: `at` in its program, its clock, its last message, and all of them by chunk and direction."""

    at: int = 0
    clock: float = 0.0
    outbox: Key | None = None
    messages: dict[tuple[int, str], list[Key]] = field(default_factory=lambda: defaultdict(list))


def rehearse(
    schedule: Schedule, cost: Cost | Mapping[str, float] = UNIT, transfer: float = 0, blocking_sends: bool = False
) -> list[Cell]:
    """Runs all ranks' programs, as fast as the messages allow.

    Args:
        schedule: any.
        cost: the time of an instruction, by kind, or from rank and instruction.
        transfer: of a message, once both sides are ready.
        blocking_sends: see above.

    Returns:
        Every instruction with its times, in the order of each rank.

    Raises:
        ScheduleFault: ranks wait for each other for ever; the text says who waits for what.
    """
    return _Rehearsal(schedule, cost, transfer, blocking_sends).run()


class _Rehearsal:
    def __init__(
        self, schedule: Schedule, cost: Cost | Mapping[str, float], transfer: float, blocking_sends: bool
    ) -> None:
        self.schedule = schedule
        self.cost: Cost = cost if callable(cost) else lambda _, instruction: cost[instruction.kind]
        self.transfer = transfer
        self.blocking = blocking_sends
        self.sent: dict[Key, float] = {}
        self.posted: dict[Key, float] = {}
        self.cells: list[Cell] = []
        self.ranks = [_Rank() for _ in schedule.programs]
        self.outputs = {
            (rank, chunk): alive(program, chunk)
            for rank, program in enumerate(schedule.programs)
            for chunk in range(schedule.chunks)
        }

    def run(self) -> list[Cell]:
        programs = self.schedule.programs
        moved = True
        while moved:
            moved = False
            for rank, state in enumerate(self.ranks):
                while state.at < len(programs[rank]) and self.step(rank, state, programs[rank][state.at]):
                    moved = True
        stuck = [
            f"rank {rank} at {programs[rank][state.at]}"
            for rank, state in enumerate(self.ranks)
            if state.at < len(programs[rank])
        ]
        if stuck:
            raise ScheduleFault(f"{self.schedule.name}: deadlock: {', '.join(stuck)}")
        return sorted(self.cells, key=lambda cell: cell.rank)

    def arrival(self, key: Key | None) -> float | None:
        """When a message is through: 0 where there is none, None while a side is missing."""
        if key is None:
            return 0
        if key not in self.sent or key not in self.posted:
            return None
        return max(self.sent[key], self.posted[key]) + self.transfer

    def step(self, rank: int, state: _Rank, each: Instruction) -> bool:
        """Does one instruction if it can begin; returns whether it did."""
        schedule = self.schedule
        left = self.arrival(state.outbox) if self.blocking else 0
        if left is None:
            return False
        comes = source(each, rank, schedule.ranks, schedule.chunks)
        key = None
        if comes is not None:
            key = (rank, each.chunk, comes[2], each.microbatch)
            self.posted.setdefault(key, max(state.clock, left))
        arrived = self.arrival(key)
        goes = destination(each, rank, schedule.ranks, schedule.chunks)
        free = 0 if goes is None else self.buffer(rank, state, each, goes[2])
        if arrived is None or free is None:
            return False
        start = max(state.clock, left, arrived, free)
        state.clock = start + self.cost(rank, each)
        self.cells.append(Cell(rank, each, start, state.clock))
        state.outbox = None
        if goes is not None:
            state.outbox = (goes[0], goes[1], goes[2], each.microbatch)
            state.messages[each.chunk, goes[2]].append(state.outbox)
            self.sent[state.outbox] = state.clock
            if goes[0] == rank:  # it stays where it is
                self.posted[state.outbox] = state.clock
        state.at += 1
        return True

    def buffer(self, rank: int, state: _Rank, each: Instruction, direction: str) -> float | None:
        """When a buffer for the output is free; None: not yet. Messages of one direction leave in order."""
        messages = state.messages[each.chunk, direction]
        buffers = self.outputs[rank, each.chunk] if direction == "forward" else max(2, self.outputs[rank, each.chunk])
        return self.arrival(messages[-buffers]) if len(messages) >= buffers else 0
