"""Logs of `psgd train`, read for pictures."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psgd.kernels.errors import DataError

MOST_WORKERS = 100_000


@dataclass
class Run:
    """What a log contains.

    Attributes:
        name: of the log's file.
        workers: how many there were.
        progress: (seconds, samples, loss) of each progress line.
        tests: (seconds, samples, accuracy) of each evaluation.
        waits: (worker, whom it waited for, from, to), seconds since the start.
        stopped: when waits were so many that no more were kept, or None.
        ends: when each worker had ended, and
        staleness: pushes by staleness, both from the last line; empty where the run did not end.
    """

    name: str
    workers: int = 0
    progress: list[tuple[float, float, float]] = field(default_factory=list)
    tests: list[tuple[float, float, float]] = field(default_factory=list)
    waits: list[tuple[int, int, float, float]] = field(default_factory=list)
    stopped: float | None = None
    ends: list[float] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The last moment that the log knows."""
        moments = [at for at, *_ in self.progress + self.tests] + [stop for *_, stop in self.waits]
        return max(moments + self.ends, default=0.0)


def read(path: Path) -> Run:
    """Reads a JSON lines log. A last line that is cut off is left out: the run may be going on.

    Raises:
        DataError: not readable, another line is not an object of a log, or there is nothing to draw.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise DataError(f"log {path}: cannot be read: {reason}") from None
    run = Run(path.stem)
    for number, line in enumerate(lines, 1):
        try:
            _add(run, json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                break
            raise DataError(
                f"log {path}, line {number}: expected a line of psgd train --log, got {line[:60]!r} ({error})"
            ) from None
    if not run.progress and not run.tests:
        raise DataError(f"log {path}: no progress in it to draw; expected a file of psgd train --log")
    run.workers = max([run.workers, *(1 + max(worker, other) for worker, other, *_ in run.waits)])
    return run


def _add(run: Run, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "start":
        run.workers = int(event.get("workers") or 1)
        if not 0 < run.workers <= MOST_WORKERS:
            raise ValueError(f"{run.workers} workers")
    elif kind == "progress":
        run.progress.append((float(event["time"]), float(event["samples"]), _number(event["loss"])))
    elif kind == "eval":
        run.tests.append((float(event["time"]), float(event["samples"]), _number(event["accuracy"])))
    elif kind == "waits":
        run.waits += [_wait(*row) for row in event.get("rows", ())]
        run.stopped = _moment(event["stopped"]) if event.get("stopped") is not None else run.stopped
    elif kind == "end":
        histogram = (event.get("staleness") or {}).get("histogram") or {}
        pairs = histogram.items() if isinstance(histogram, dict) else enumerate(histogram)
        run.staleness = {int(key): int(count) for key, count in pairs}
        if not all(0 <= number < 2**63 for pair in run.staleness.items() for number in pair):
            raise ValueError("a staleness or a count that cannot be")
        seconds = zip(event.get("waited_seconds", ()), event.get("computed_seconds", ()), strict=True)
        run.ends = [_moment(waited + computed) for waited, computed in seconds]
        if run.ends and len(run.ends) != run.workers:
            raise ValueError(f"seconds of {len(run.ends)} workers, {run.workers} of them ran")


def _wait(worker: int, other: int, start: float, stop: float) -> tuple[int, int, float, float]:
    if not (0 <= int(worker) < MOST_WORKERS and 0 <= int(other) < MOST_WORKERS and start <= stop):
        raise ValueError("a wait of no worker or of no time")
    return int(worker), int(other), _moment(start), _moment(stop)


def _moment(value: float) -> float:
    moment = float(value)
    if not (math.isfinite(moment) and moment >= 0):
        raise ValueError(f"{value} is no time")
    return moment


def _number(value: object) -> float:
    """A diverged run's loss is null in its log: a gap in the picture."""
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]
