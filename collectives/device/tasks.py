"""Chains of steps on their way at the same time, each going on as soon as what it waits for has happened.

Whoever makes something happen is asked for it, all at once and once a round, and sets flags; a flag that is set goes on
with the chain that waits for it. So what a round costs does not grow with what is under way.
"""

from collections.abc import Callable, Iterator, Sequence

from psgd.collectives.mpi.wait import Steps

_ROUNDS = 16  # before whoever waits looks after other things


class DeviceEvent:
    """Something that will have happened.

    Attributes:
        done: whether it has.
        then: what to do once it has: at most one waits for it.
    """

    __slots__ = ("done", "then")

    def __init__(self, done: bool = False) -> None:
        self.done = done
        self.then: Callable[[], None] | None = None

    def set(self) -> None:
        """It has happened."""
        self.done = True
        if self.then is not None:
            then, self.then = self.then, None
            then()


TaskSteps = Iterator[DeviceEvent]
"""What does something, says what it waits for, goes on once that has happened, and so on."""


class DeviceTask(DeviceEvent):
    """A chain that goes as far as it can at once, and then by itself; it has happened once the chain is at its end."""

    __slots__ = ("_chain",)

    def __init__(self, chain: TaskSteps) -> None:
        super().__init__()
        self._chain = chain
        self._go()

    def _go(self) -> None:
        for flag in self._chain:
            if not flag.done:
                flag.then = self._go
                return
        self.set()


def in_lanes(count: int, width: int, lane: Callable[[int], TaskSteps], polls: Sequence[Callable[[], bool]]) -> Steps:
    """Runs chains 0 to count - 1, `width` at a time.

    TaskSteps k starts once chain k - width is at its end, so whatever belongs to chain k may be kept by k % width.

    Args:
        count: of the chains.
        width: lanes.
        lane: makes a chain.
        polls: what sets flags; each says whether it has set any.
    """

    def in_turn(first: int) -> TaskSteps:
        for k in range(first, count, width):
            yield from lane(k)

    whole = DeviceTask(iter([DeviceTask(in_turn(first)) for first in range(min(width, count))]))

    def moved() -> bool:
        """Whether anything went on for some rounds: each wait is for one step, not for the whole."""
        went = False
        for _ in range(_ROUNDS):
            for poll in polls:
                went |= poll()
            if whole.done:
                return True
        return went

    while not whole.done:
        yield moved
