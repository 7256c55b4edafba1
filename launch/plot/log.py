"""Logs of `psgd train`, read for pictures."""

import codecs
import json
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psgd.kernels.errors import DataError
from psgd.kernels.notice import say

MOST_WORKERS = 100_000
LARGEST = 1e200
"""What is larger cannot be drawn: matplotlib's sums of it overflow."""
_NOT_OURS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass
class Run:
    """What a log contains.

    Attributes:
        name: of the log's file.
        task: what was trained, and how, as far as the log says.
        workers: how many there were.
        progress: (seconds, samples, loss) of each progress line.
        tests: (seconds, samples, accuracy) of each evaluation.
        waits: (worker, whom it waited for, from, to), seconds since the start.
        stopped: when waits were so many that no more were kept, or None.
        ends: when each worker had ended, and
        staleness: pushes by staleness, both from the last line; empty where the run did not end.
        begins: whether the next point is the first since a run has begun or resumed.
    """

    name: str
    workers: int = 0
    task: str = ""
    progress: list[tuple[float, float, float]] = field(default_factory=list)
    tests: list[tuple[float, float, float]] = field(default_factory=list)
    waits: list[tuple[int, int, float, float]] = field(default_factory=list)
    stopped: float | None = None
    ends: list[float] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=dict)
    begins: bool = True

    @property
    def seconds(self) -> float:
        """The last moment that the log knows."""
        moments = [at for at, *_ in self.progress + self.tests] + [stop for *_, stop in self.waits]
        return max(moments + self.ends, default=0.0)


def read(path: Path) -> Run:
    """Reads a JSON lines log, of one run or of one and those that resumed it: steps that were redone count once.

    Lines that are none of a log's are left out with one warning, as where a crash or a full disk has cut one off. The
    last may be cut off without a warning: the run may still be writing.

    Raises:
        DataError: not readable, or there is nothing to draw.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("expected a plain file")  # a device or a pipe may have no end
        content = path.read_bytes()
        wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        lines = content.decode("utf-16" if wide else "utf-8-sig", errors="replace").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"log {path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    run, broken = Run(path.stem), []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _add(run, _event(line))
        except _NOT_OURS as error:
            broken.append(f"line {number}: expected a line of psgd train --log, got {line[:60]!r} ({error})")
    if not run.progress and not run.tests:
        why = broken[0] if broken else "expected a file of psgd train --log"
        raise DataError(f"log {path}: no progress in it to draw; {why}")
    if lines[-1] and broken and broken[-1].startswith(f"line {len(lines)}:"):
        broken.pop()
    if broken:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        say(f"warning: log {path}, {broken[0]}{more}: skipped")
    run.workers = max([run.workers, *(1 + max(worker, other) for worker, other, *_ in run.waits)])
    return run


def _event(line: str) -> dict[str, Any]:
    """A line's object. Where a torn line and the next one became one, it is the last of them."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        begin = line.rfind('{"event"')
        if begin <= 0:
            raise
        event = json.loads(line[begin:])
    return event


def _add(run: Run, event: dict[str, Any]) -> None:
    kind = event["event"]
    if kind == "start":
        workers = int(event.get("workers") or 1)
        if not 0 < workers <= MOST_WORKERS:
            raise ValueError(f"{workers} workers")
        run.workers, run.ends, run.staleness, run.begins = workers, [], {}, True
        run.task = ", ".join(str(event[name]) for name in ("dataset", "model", "strategy") if event.get(name))
    elif kind in ("progress", "eval"):
        points, quantity = (run.progress, "loss") if kind == "progress" else (run.tests, "accuracy")
        point = _moment(event["time"]), _moment(event["samples"]), _number(event[quantity])
        _forget(run, *point[:2])
        points.append(point)
    elif kind == "waits":
        run.waits += [_wait(*row) for row in event.get("rows", ())]
        run.stopped = _moment(event["stopped"]) if event.get("stopped") is not None else run.stopped
    elif kind == "end":
        histogram = (event.get("staleness") or {}).get("histogram") or {}
        pairs = histogram.items() if isinstance(histogram, dict) else enumerate(histogram)
        staleness = {int(key): int(count) for key, count in pairs}
        if not all(0 <= number < 2**63 for pair in staleness.items() for number in pair):
            raise ValueError("an impossible staleness or count")
        seconds = zip(event.get("waited_seconds", ()), event.get("computed_seconds", ()), strict=True)
        ends = [_moment(waited + computed) for waited, computed in seconds]
        if ends and len(ends) != run.workers:
            raise ValueError(f"times of {len(ends)} worker(s), expected {run.workers}")
        run.staleness, run.ends = staleness, ends


def _forget(run: Run, seconds: float, samples: float) -> None:
    """A run that resumes from a checkpoint does again what came after it: that is forgotten."""
    newest = max((points[-1][1] for points in (run.progress, run.tests) if points), default=0.0)
    if not run.begins and samples >= newest:
        for points in (run.progress, run.tests):
            if points and points[-1][0] > seconds:  # a damaged time: lines are in the order in which they happened
                points[:] = [point for point in points if point[0] <= seconds]
        return
    run.begins = False
    for points in (run.progress, run.tests):
        points[:] = [point for point in points if point[0] < seconds and point[1] < samples]
    run.waits = [wait for wait in run.waits if wait[3] <= seconds]
    if run.stopped is not None and run.stopped >= seconds:
        run.stopped = None


def _wait(worker: int, other: int, start: float, stop: float) -> tuple[int, int, float, float]:
    if not (0 <= int(worker) < MOST_WORKERS and 0 <= int(other) < MOST_WORKERS and start <= stop):
        raise ValueError("a wait with an impossible worker or time")
    return int(worker), int(other), _moment(start), _moment(stop)


def _moment(value: float) -> float:
    moment = float(value)
    if not 0 <= moment < LARGEST:
        raise ValueError(f"{value} is not a number that can be drawn")
    return moment


def _number(value: object) -> float:
    """A diverged run's loss is null in its log, or larger than can be drawn: a gap in the picture."""
    number = float("nan") if value is None else float(value)  # type: ignore[arg-type]
    return number if abs(number) < LARGEST else float("nan")
