"""The log of a job that may still be writing it: read on from where the last look ended, torn lines and all."""

import json
from pathlib import Path
from typing import Any

from psgd.kernels.errors import DataError

_LARGEST_LOOK = 1 << 24
"""Bytes: of a longer log only its end is read at the first look, and its first line."""


class JobLog:
    """What is known of a job.

    Args:
        path: of the log.

    Attributes:
        path: as given.
        start, progress, tested, workers, end: the newest line of that event; empty before there is one.
        best: the best accuracy so far, None before there is one.
        skipped: lines that were none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start: dict[str, Any] = {}
        self._forget()
        self.skipped = 0
        self._position, self._rest = 0, b""

    def _forget(self) -> None:
        self.progress: dict[str, Any] = {}
        self.tested: dict[str, Any] = {}
        self.workers: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.best: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return bool(self.end)

    def look(self) -> None:
        """Reads what is new. A file that became shorter is another run's: it is read from its beginning.

        Raises:
            DataError: it cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._position:
                    self._forget()
                    self.start, self.skipped, self._position, self._rest = {}, 0, 0, b""
                if size - self._position > _LARGEST_LOOK:
                    file.seek(self._position)
                    self._take(file.readline())
                    self._position, self._rest = size - _LARGEST_LOOK, b'{"'  # its first line is cut off
                file.seek(self._position)
                new = file.read(_LARGEST_LOOK)
                self._position = file.tell()
        except OSError as error:
            raise DataError(f"log {self.path}: cannot be read: {error.strerror}") from None
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        begin = max(0, line.rfind(b'{"event"'))  # where a torn line and the next one became one, the last counts
        try:
            event = json.loads(line[begin:])
            kind = event["event"]
        except (ValueError, TypeError, KeyError):
            self.skipped += 1
            return
        if kind == "start":
            self._forget()
            self.start = event
        elif kind == "progress":
            self.progress = event
        elif kind == "workers":
            self.workers = event
        elif kind == "eval":
            self.tested = event
            accuracy = event.get("accuracy")
            if isinstance(accuracy, int | float):
                self.best = accuracy if self.best is None else max(self.best, accuracy)
        elif kind == "end":
            self.end = event
