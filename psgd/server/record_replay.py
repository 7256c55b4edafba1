"""The order of a run as a file: written while it happens, and enforced when it is to happen again.

JSON lines. The first says what the run was; each other one is an entry of the log: the pushes that were applied,
whether their group stayed open, who was released, and where checkpoints were made. A run that follows the same order on
the same data ends with the same bits.
"""

import errno
import json
import math
import os
import stat
import sys
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP
from psgd.kernels.errors import ContractError, UsageError
from psgd.runtime.new_files import SideFile, open_named
from psgd.server.log import CheckpointPoint, Contribution, LogEntry
from psgd.server.policy import Policy
from psgd.server.wire import Header

FORMAT = "psgd order 1"


class Recorder:
    """A strategy whose decisions are written down.

    Args:
        strategy: the one that decides.
        path: the file, overwritten; where the run is resumed, it is continued at the checkpoint.
        run: what a run that follows it must have in common, as JSON can say it.
        resumed: the run is; `restore` comes next.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, strategy: Policy, path: Path, run: Mapping[str, Any], resumed: bool = False) -> None:
        self.fixed_order = strategy.fixed_order
        self._strategy = strategy
        self._path = path
        try:
            number = open_named(path, os.O_RDWR if resumed else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            if resumed and not stat.S_ISREG(os.fstat(number).st_mode):
                raise OSError(errno.EINVAL, "expected the file of the run that is resumed")
        except OSError as error:
            raise UsageError(f"record: {path} cannot be written: {error.strerror}") from None
        self._text = open(number, "r+" if resumed else "w", encoding="utf-8")  # noqa: SIM115
        self._file = SideFile(f"record {path}", self._text)
        self._head = json.dumps({"format": FORMAT, "run": dict(run)}) + "\n"
        if not resumed:
            self._file.write(self._head)

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        return self._written(self._strategy.on_push(push, now))

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        return self._written(self._strategy.on_done(worker, now))

    def restore(self, point: CheckpointPoint) -> None:
        """What was written after it is removed.

        Raises:
            UsageError: the file is of another run, or has less than the run had done.
        """
        self._strategy.restore(point)
        if self._text.readline() != self._head:
            raise UsageError(
                f"record: {self._path} is from another run, or has other workers: use another file for this one"
            )
        for _ in range(point.entries):
            if not self._text.readline().endswith("\n"):
                raise UsageError(f"record: {self._path} ends before the checkpoint that this run resumes from")
        self._text.seek(self._text.tell())
        self._text.truncate()

    def close(self) -> None:
        """Closes the file; it is complete, unless writing failed, of which there was a warning."""
        self._file.close()

    def _written(self, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        for entry in entries:
            line: dict[str, Any] = {"apply": [list(member) for member in entry.group]}
            if entry.stays_open:
                line["opens"] = True
            if entry.checkpoint:
                line["save"] = entry.checkpoint
            self._write({**line, "release": list(entry.release)})
        if entries and entries[-1].checkpoint:
            self._file.flush()  # so that a resumed run finds all up to its checkpoint
        return entries

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


class Replay:
    """A strategy that decides what a file says, as soon as the pushes for it have arrived.

    Args:
        workers: how many there are.
        entries: what is to happen, in order; empty on servers that only follow. Where they have checkpoints, this run
            has them too, and nowhere else; whether it stops there, it decides itself.
    """

    fixed_order = False

    def __init__(self, workers: int, entries: list[LogEntry]) -> None:
        self._next = deque(entries)
        self._pending: dict[int, int] = {}
        self._live = set(range(workers))
        self._request = SAVE

    def on_push(self, push: Header, now: float) -> tuple[LogEntry, ...]:
        """Decides what is due.

        Raises:
            ContractError: this run has a push that the recorded one did not have.
        """
        self._request = max(self._request, push.checkpoint_request)
        self._pending[push.worker] = push.push
        entries = self._due()
        if not self._next and self._pending:
            raise ContractError(f"replay: push {push.push} of worker {push.worker} is not in the file")
        return entries

    def on_done(self, worker: int, now: float) -> tuple[LogEntry, ...]:
        """Decides what is due.

        Raises:
            ContractError: the recorded run had a push that this one does not have.
        """
        self._live.discard(worker)
        entries = self._due()
        for member in self._next[0].group if self._next else ():
            if member.worker not in self._live and member.worker not in self._pending:
                raise ContractError(
                    f"replay: the file has push {member.push} of worker {member.worker}, but that worker has ended"
                )
        return entries

    def restore(self, point: CheckpointPoint) -> None:
        """What the file has before it has happened.

        Raises:
            UsageError: the file is of another run.
        """
        passed = [self._next.popleft() for _ in range(min(point.entries, len(self._next)))]
        if self._next and (len(passed) < point.entries or not passed[-1].checkpoint):
            raise UsageError(
                f"replay: action {point.entries} in the file is not a checkpoint, but this run resumes from one"
            )

    def _due(self) -> tuple[LogEntry, ...]:
        due = []
        while self._next and all(self._pending.get(member.worker) == member.push for member in self._next[0].group):
            entry = self._next.popleft()
            if entry.checkpoint:
                entry, self._request = entry._replace(checkpoint=self._request), SAVE
            due.append(entry)
            for member in entry.group:
                del self._pending[member.worker]
        return tuple(due)


def load(path: Path, run: Mapping[str, Any]) -> list[LogEntry]:
    """Reads what a `Recorder` wrote.

    Args:
        path: the file.
        run: what this run is; it must be what the file says.

    Raises:
        UsageError: it cannot be read, is no such file, or is of another run.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"replay: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    number = 1
    try:
        head = json.loads(lines[0])
        if head["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, got {head['format']!r}")
        recorded = head["run"]
        if not isinstance(recorded, dict):
            raise ValueError(f"expected a run, got {recorded!r}")
        entries, course = [], _Course(recorded.get("workers"))
        for line in lines[1:]:
            number += 1
            fields = json.loads(line)
            group = tuple(Contribution(_whole(w), _whole(p), float(weight)) for w, p, weight in fields["apply"])
            release = tuple(_whole(worker) for worker in fields["release"])
            save = _whole(fields.get("save", 0))
            if save > SAVE_AND_STOP:
                raise ValueError(f"expected save of at most {SAVE_AND_STOP}, got {save}")
            entries.append(LogEntry(group, release, stays_open=fields.get("opens") is True, checkpoint=save))
            course.take(entries[-1])
        course.end()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"replay: {path}, line {number}: not a valid record: {error}") from None
    for key, value in run.items():
        if recorded.get(key) != value:
            raise UsageError(
                f"replay: {path} is from another run: {key} was {recorded.get(key)!r} there and is {value!r} here"
            )
    return entries


class _Course:
    """What workers can do: push, wait until released, push again. An order that asks for more would never end."""

    def __init__(self, workers: object) -> None:
        self._workers = workers if type(workers) is int else sys.maxsize
        self._applied: Counter[int] = Counter()
        self._released: Counter[int] = Counter()

    def take(self, entry: LogEntry) -> None:
        """Raises ValueError where the entry cannot follow on those before."""
        for worker, push, weight in entry.group:
            self._applied[worker] += 1
            if not push == self._applied[worker] <= self._released[worker] + 1:
                raise ValueError(f"push {push} of worker {worker} is out of order")
            if not 0 <= weight < math.inf:
                raise ValueError(
                    f"push {push} of worker {worker} has weight {weight}, expected a finite one of 0 or more"
                )
        for worker in entry.release:
            self._released[worker] += 1
            if self._released[worker] > self._applied[worker]:
                raise ValueError(f"worker {worker} is released without a push")
        if max((*self._applied, *entry.release), default=-1) >= self._workers:
            raise ValueError(f"a worker that is not one of the {self._workers}")

    def end(self) -> None:
        """Raises ValueError where somebody would wait for ever."""
        if waiting := [worker for worker in self._applied if self._applied[worker] > self._released[worker]]:
            raise ValueError(f"the file ends before worker {waiting[0]} is released: was that run killed?")


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value
