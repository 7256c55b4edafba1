"""Trouble on purpose, for experiments and tests: ranks that are slow, stop, die, fail or compute nonsense.

A specification is a list of parts, with commas between:

    slow:W:F             worker W takes F times as long for each gradient, by sleeping
    slow:rotating:F:S    each worker takes F times as long at a share S of its steps, in turns
    compute:T            every gradient takes at least T seconds, before the factors: on a machine with few cores
                         sleeping workers do not slow each other down as computing ones would
    kill:RANK@STEP       SIGKILL
    stop:RANK@STEP:T     SIGSTOP, and SIGCONT after T seconds
    raise:RANK@STEP      an exception
    nan:RANK@STEP        a worker's batch becomes NaN, so its gradient is; a server's parameters become NaN

RANK is a worker's index, or s and a server's: `s0`. STEP counts from 1: a worker's as it begins that step of its own, a
server's when it has applied that version. Each happens once, and not at all in a run that resumes behind it.
"""

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from psgd.kernels.errors import Error, UsageError

if TYPE_CHECKING:
    from psgd.kernels.array import Array

_FORMS = (
    "slow:WORKER:FACTOR, slow:rotating:FACTOR:SHARE, compute:SECONDS, kill:RANK@STEP, stop:RANK@STEP:SECONDS, "
    "raise:RANK@STEP or nan:RANK@STEP, separated by commas"
)
_MOST = 1e6
"""The largest number of seconds, and the largest factor."""
_EVENT = re.compile(r"(kill|stop|raise|nan):(s?)(\d{1,9})@(\d{1,18})(?::([^:]+))?")


class Counter(Protocol):
    """What hears of each step that a server takes: `psgd.metrics.run_metrics.RunMetrics`."""

    def progress(self, samples: int, version: int, lr: float) -> None:
        """A step was taken."""


class InjectedError(Error):
    """What `raise:RANK@STEP` raises."""


class Event(NamedTuple):
    """One part with a step: what happens on which rank, and for how long where that matters."""

    what: str
    server: bool
    place: int
    step: int
    seconds: float


class Injector:
    """One rank's trouble.

    Args:
        text: the specification; empty is none.
        index: of this rank among the workers, or the servers.
        workers: how many there are.
        servers: how many there are.
        server: whether this rank is one.

    Raises:
        UsageError: not such a specification.
    """

    def __init__(self, text: str, index: int, workers: int, servers: int = 0, server: bool = False) -> None:
        self._least_s = 0.0
        self._factor = 1.0
        self._rotating: list[tuple[float, int, int]] = []  # factor, steps between, first
        self._events: list[Event] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            if match := _EVENT.fullmatch(part):
                event = _event(part, match, workers, servers)
                if (event.server, event.place) == (server, index):
                    self._events.append(event)
            else:
                self._add_slowness(part, index, workers)

    def _add_slowness(self, part: str, worker: int, workers: int) -> None:
        words = part.split(":")
        if words[0] == "compute" and len(words) == 2:
            self._least_s = _number(part, words[1], 0.0)
        elif words[0] == "slow" and words[1:2] == ["rotating"] and len(words) == 4:
            factor, share = _number(part, words[2], 1.0), _number(part, words[3], 0.0)
            if not 0 < share <= 1:
                raise UsageError(f"inject {part}: expected a share above 0, at most 1, got {share:g}")
            every = round(1 / share)
            self._rotating.append((factor, every, worker * every // workers))
        elif words[0] == "slow" and len(words) == 3 and re.fullmatch(r"\d{1,9}", words[1]):
            factor = _number(part, words[2], 1.0)
            if int(words[1]) >= workers:
                raise UsageError(f"inject {part}: expected a worker from 0 to {workers - 1}, got {words[1]}")
            if int(words[1]) == worker:
                self._factor *= factor
        else:
            raise UsageError(f"inject: expected {_FORMS}, got {part!r}")

    @property
    def slows(self) -> bool:
        """Whether it ever sleeps."""
        return bool(self._least_s or self._rotating) or self._factor != 1

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

    def begin(self, step: int) -> None:
        """A worker begins its step of that number, from 0: here it is killed, stopped, or raises an InjectedError."""
        if self._events:
            self._strike(step + 1)

    def poison(self, step: int, x: "Array") -> None:
        """Makes a worker's batch NaN where that is due at its step of that number, from 0."""
        for event in self._events:
            if event.what == "nan" and event.step == step + 1:
                x.fill(math.nan)

    def watch(self, metrics: Counter, params: "Array") -> None:
        """On a server: what is due happens when `metrics` hears of the version; `params` are what becomes NaN."""
        if self._events:
            metrics.progress = self._watched(metrics.progress, params)  # type: ignore[method-assign]

    def _watched(self, tell: Callable[..., None], params: "Array") -> Callable[..., None]:
        seen = 0

        def progress(samples: int, steps: int, lr: float, *more: Any) -> None:
            nonlocal seen
            tell(samples, steps, lr, *more)
            if steps != seen:  # a group without samples leaves the version as it is
                seen = steps
                self.poison(steps - 1, params)
                self._strike(steps)

        return progress

    def _strike(self, step: int) -> None:
        for event in self._events:
            if event.step != step:
                continue
            if event.what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif event.what == "stop":
                _pause(event.seconds)
            elif event.what == "raise":
                raise InjectedError(f"injected by --inject raise:{'s' * event.server}{event.place}@{step}")


def check(text: str, workers: int, servers: int = 0, only_slow: bool = False) -> None:
    """Raises UsageError where the specification is wrong for that many ranks, or is more than slow and may not be."""
    Injector(text, 0, workers, servers)
    if only_slow and "@" in text:
        raise UsageError(f"inject: expected slow and compute only, got {text!r}")


def _event(part: str, match: re.Match[str], workers: int, servers: int) -> Event:
    what, server, index, step = match[1], bool(match[2]), int(match[3]), int(match[4])
    if (what == "stop") != (match[5] is not None):
        raise UsageError(f"inject {part}: expected {what}:RANK@STEP{':SECONDS' if what == 'stop' else ''}")
    if index >= (servers if server else workers):
        role, many = ("server", servers) if server else ("worker", workers)
        raise UsageError(f"inject {part}: expected one of the {many} {role}(s), counted from 0, got {index}")
    if step < 1:
        raise UsageError(f"inject {part}: expected a step of 1 or more, got {step}")
    return Event(what, server, index, step, _number(part, match[5] or "0", 0.0))


def _pause(seconds: float) -> None:
    """Stops this process; a helper, which dies with its process group, lets it continue."""
    helper = subprocess.Popen(
        ["/bin/sh", "-c", f"sleep {seconds:f}; kill -CONT {os.getpid()}"], stdin=subprocess.DEVNULL
    )
    os.kill(os.getpid(), signal.SIGSTOP)
    helper.wait()


def _number(part: str, text: str, low: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= _MOST:
        raise UsageError(f"inject {part}: expected a number from {low:g} to {_MOST:g}, got {text!r}")
    return value
