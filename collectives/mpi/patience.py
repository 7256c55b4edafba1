"""How long to wait for something, without the time in which this process was stopped: what it waits for had no chance.

A process that is stopped (SIGSTOP, a scheduler that suspends jobs, a debugger) finds that clocks have jumped.
"""

import time
from collections.abc import Callable

JUMP_S = 1.0
"""Between two looks of a loop that looks all the time: more than that was no waiting."""


class Patience:
    """A time limit, from now on.

    Args:
        seconds: until it is over.
        clock: in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._left, self._looked = clock, seconds, clock()

    def over(self) -> bool:
        """Whether it is; to be asked again and again. A jump of the clock counts as no time."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        if passed < JUMP_S:
            self._left -= passed
        return self._left < 0
