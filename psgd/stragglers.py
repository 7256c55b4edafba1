"""Slow workers on purpose, for experiments: they sleep.

A specification is a list of parts, with commas between:

    slow:W:F            worker W takes F times as long for each gradient
    slow:rotating:F:S   each worker takes F times as long at a share S of its steps, in turns
    compute:T           every gradient takes at least T seconds, before the factors: on a machine with few cores
                        sleeping workers do not slow each other down as computing ones would
"""

import math
import time
from collections.abc import Sequence

from psgd.kernels.errors import UsageError

_FORMS = "slow:WORKER:FACTOR, slow:rotating:FACTOR:SHARE or compute:SECONDS, with commas between"


class Stragglers:
    """One worker's sleep.

    Args:
        text: the specification; empty is none.
        worker: its index.
        workers: how many there are.

    Raises:
        UsageError: not such a specification.
    """

    def __init__(self, text: str, worker: int, workers: int) -> None:
        self._least_s = 0.0
        self._factor = 1.0
        self._rotating: list[tuple[float, int, int]] = []  # factor, steps between, first
        for part in filter(None, text.split(",")):
            words = part.strip().split(":")
            if words[0] == "compute" and len(words) == 2:
                self._least_s = _number(part, words[1], 0.0)
            elif words[0] == "slow" and words[1:2] == ["rotating"] and len(words) == 4:
                factor, share = _number(part, words[2], 1.0), _number(part, words[3], 0.0)
                if not 0 < share <= 1:
                    raise UsageError(f"inject {part}: expected a share above 0, at most 1, got {share:g}")
                every = round(1 / share)
                self._rotating.append((factor, every, worker * every // workers))
            elif words[0] == "slow" and len(words) == 3 and words[1].isdecimal():
                if int(words[1]) >= workers:
                    raise UsageError(f"inject {part}: expected a worker from 0 to {workers - 1}, got {words[1]}")
                if int(words[1]) == worker:
                    self._factor *= _number(part, words[2], 1.0)
            else:
                raise UsageError(f"inject: expected {_FORMS}, got {part!r}")

    def delay_s(self, step: int, computed_s: float) -> float:
        """How long the worker sleeps after a gradient.

        Args:
            step: number of the gradient, from 0.
            computed_s: seconds that it took.
        """
        factor = self._factor
        for slower, every, first in self._rotating:
            if step % every == first:
                factor *= slower
        return max(self._least_s, computed_s) * factor - computed_s

    def sleep(self, step: int, computed_s: float) -> None:
        """Sleeps for `delay_s`."""
        delay = self.delay_s(step, computed_s)
        if delay > 0:
            time.sleep(delay)


def check(text: str, workers: Sequence[int]) -> None:
    """Raises UsageError where the specification is wrong for that many workers."""
    for worker in workers:
        Stragglers(text, worker, len(workers))


def _number(part: str, text: str, low: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (low <= value < math.inf):
        raise UsageError(f"inject {part}: expected a number of {low:g} or more, got {text!r}")
    return value
