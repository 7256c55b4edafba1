"""How a run ended, reported by rank 0 through a file: mpiexec's exit code is not proof of success."""

import os
from pathlib import Path

from psgd.kernels.notice import say

VARIABLE = "PSGD_OUTCOME"
_ROOM = b" " * 63 + b"\n"
_BEGUN = "begun"


def prepare(path: Path) -> None:
    """Makes the file, with room for a report that a full disk cannot take away later. Raises OSError."""
    path.write_bytes(_ROOM)


def report(code: int) -> bool:
    """Writes the run's exit code to the file that the launcher named. The last thing a run does.

    Returns False where no launcher of psgd started this job, or the file cannot be written.
    """
    return _write(str(code))


def report_begun() -> None:
    """Writes that MPI has started on all ranks: from now on the job itself sees to ranks that die."""
    _write(_BEGUN)


def _write(words: str) -> bool:
    target = os.environ.get(VARIABLE)
    if not target:
        return False
    text = words.encode()
    try:
        with open(target, "r+b", buffering=0) as file:
            file.write(text + _ROOM[len(text) :])
    except OSError as error:
        say(f"error: {target}: {error.strerror}: the launcher will not know how this run ended")
        return False
    return True


def read(path: str | Path) -> int | None:
    """Reads the exit code that `report` wrote; None where there is none to be read."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def has_begun(path: str | Path) -> bool:
    """Whether anything was written, or can be read no more."""
    try:
        return bool(Path(path).read_text().strip())
    except OSError:
        return True
