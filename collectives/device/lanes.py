"""Carries out several chains of steps at a time, each of which waits for its own tests only.

What may take a while is told by flags, and whoever sets them is asked once a round for all of them: a look at MPI or at
CUDA costs microseconds, whatever it finds.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence

from psgd.collectives.channel import Test

Steps = Generator[Test, None, None]
_ROUNDS = 16  # before whoever waits looks after other things


class Flag:
    """A test that somebody else makes true."""

    __slots__ = ("done",)

    def __init__(self, done: bool = False) -> None:
        self.done = done

    def __call__(self) -> bool:
        """Whether it is."""
        return self.done


class Task(Flag):
    """Steps that go on when it moves; true once all are done.

    Attributes:
        done: whether they are.
    """

    __slots__ = ("_steps", "_test")

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps
        self._test: Test | None = next(steps, None)
        self.done = self._test is None

    def moves(self) -> bool:
        """Takes all steps that can be taken now; whether there was one."""
        moved = False
        while self._test is not None and self._test():
            moved = True
            self._test = next(self._steps, None)
        self.done = self._test is None
        return moved


class Lanes:
    """Runs numbered chains of steps, `width` at a time, and lets tasks go on beside them.

    Lane k starts once lane k - width is done, so whatever belongs to lane k may be kept by k % width.

    Args:
        width: lanes that are under way at most.
        polls: what sets flags, to be called once a round: whether it has set any, or there are tests beside flags.
    """

    def __init__(self, width: int, polls: Sequence[Callable[[], bool]] = ()) -> None:
        self.width = width
        self._polls = polls
        self._beside: deque[Task] = deque()

    def beside(self, steps: Steps) -> Task:
        """Starts steps that go on whatever the lanes wait for."""
        task = Task(steps)
        task.moves()
        if not task.done:
            self._beside.append(task)
        return task

    def run(self, count: int, lane: Callable[[int], Steps]) -> Steps:
        """Runs lanes 0 to count - 1, and all that was started beside them, to the end."""
        active: deque[Task] = deque()
        started = 0
        went = True  # in the last round: then there may be more to do at once

        def turn() -> bool:
            """One round: whether anything went on."""
            nonlocal started, went
            news = [poll() for poll in self._polls]
            if news and not (went or any(news)):
                return False
            went = False
            for _ in range(len(self._beside)):
                task = self._beside.popleft()
                went |= task.moves()
                if not task.done:
                    self._beside.append(task)
            for each in active:
                went |= each.moves()
            while active and active[0].done:
                active.popleft()
            while started < count and len(active) < self.width:
                active.append(Task(lane(started)))
                started += 1
                went = True
            went |= not (active or self._beside)
            return went

        def moved() -> bool:
            """Whether anything went on for some rounds: each wait is for one step, not for the whole."""
            return any(turn() for _ in range(_ROUNDS))

        while started < count or active or self._beside:
            yield moved
