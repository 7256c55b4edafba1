"""The run's log: one JSON object a line, on the rank that leads, written as it happens."""

import json
from pathlib import Path
from typing import Any

from psgd.runtime.jsonable import clean
from psgd.runtime.new_files import SideFile, lose, open_text


class EventLog:
    """Writes JSON lines to a file; without a path it does nothing. A disk that is full costs the log, not the run.

    Args:
        path: the file; None is off.
        append: what is in it stays, for a run that is resumed; else it is overwritten.
    """

    def __init__(self, path: Path | None, append: bool = False) -> None:
        self.open(path, append)

    def open(self, path: Path | None, append: bool = False) -> None:
        """From now on writes there; the arguments are those of the class."""
        what = f"log {path}"
        try:
            self._file = SideFile(what, None if path is None else open_text(path, append))
        except OSError as error:
            lose(what, error)
            self._file = SideFile(what, None)

    @property
    def on(self) -> bool:
        """Whether what is written goes anywhere."""
        return self._file.open

    def write(self, event: str, **fields: Any) -> None:
        """Writes one line; numbers that are not finite become null."""
        if self._file.open:
            self._file.write(json.dumps({"event": event, **clean(fields)}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
