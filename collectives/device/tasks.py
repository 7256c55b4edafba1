"""Tasks that are under way at the same time, each resumed as soon as the event that it waits for has happened.

Streams, requests and words in memory are polled once a round, and set their events; an event that is set resumes the
task that waits for it. So the cost of a round does not grow with the number of tasks.
"""

from collections.abc import Callable, Iterator, Sequence

from psgd.collectives.mpi.wait import Steps

_ROUNDS = 16  # before the waiting rank looks after other things


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
"""The steps of a task: it starts something, yields the event to wait for, is resumed, and so on."""


class DeviceTask(DeviceEvent):
    """Steps that run as far as they can at once, and then by themselves; it has happened once they are at their end."""

    __slots__ = ("_steps",)

    def __init__(self, steps: TaskSteps) -> None:
        super().__init__()
        self._steps = steps
        self._go()

    def _go(self) -> None:
        for event in self._steps:
            if not event.done:
                event.then = self._go
                return
        self.set()


def in_lanes(count: int, width: int, lane: Callable[[int], TaskSteps], polls: Sequence[Callable[[], bool]]) -> Steps:
    """Runs tasks 0 to count - 1, `width` at a time.

    Task k starts once task k - width is at its end, so what belongs to task k may be kept by k % width.

    Args:
        count: of the tasks.
        width: lanes.
        lane: makes the steps of a task.
        polls: what sets events; each says whether it has set any.
    """

    def in_turn(first: int) -> TaskSteps:
        for k in range(first, count, width):
            yield from lane(k)

    whole = DeviceTask(iter([DeviceTask(in_turn(first)) for first in range(min(width, count))]))

    def moved() -> bool:
        """Whether anything happened within some rounds."""
        went = False
        for _ in range(_ROUNDS):
            for poll in polls:
                went |= poll()
            if whole.done:
                return True
        return went

    # Each wait is for some event, not for the end: a waiter that sees progress starts its patience anew, and does not
    # fall asleep in the middle of a transfer.
    while not whole.done:
        yield moved
