"""The run's log: one JSON object a line, on rank 0, written as it happens."""

import contextlib
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from psgd.runtime.jsonable import clean


class EventLog:
    """Writes JSON lines to a file; without a path it does nothing. A disk that is full costs the log, not the run.

    Args:
        path: the file; None is off.
        append: what is in it stays, for a run that is resumed; else it is overwritten.
    """

    def __init__(self, path: Path | None, append: bool = False) -> None:
        self._file = None if path is None else path.open("a" if append else "w", encoding="utf-8", buffering=1)

    def write(self, event: str, **fields: Any) -> None:
        """Writes one line; numbers that are not finite become null."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"event": event, **clean(fields)}) + "\n")
        except OSError as error:
            print(f"psgd: warning: log {self._file.name}: {error.strerror}; it ends here", file=sys.stderr, flush=True)
            self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
