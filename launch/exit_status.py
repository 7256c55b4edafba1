"""How a run ended, reported by rank 0 through a file: mpiexec's exit code is not proof of success."""

import os
import sys
from pathlib import Path

VARIABLE = "PSGD_OUTCOME"


def report(code: int) -> bool:
    """Writes the run's exit code to the file that the launcher named. The last thing a run does.

    Atomic: the file is there complete or not at all. Returns False where no launcher of psgd started this job, or
    the file cannot be written.
    """
    target = os.environ.get(VARIABLE)
    if not target:
        return False
    part = f"{target}.{os.getpid()}"
    try:
        Path(part).write_text(str(code))
        os.replace(part, target)
    except OSError as error:
        print(f"psgd: warning: the launcher will not learn that the run ended: {error}", file=sys.stderr, flush=True)
        return False
    return True


def read(path: str | Path) -> int | None:
    """Reads the exit code that `report` wrote; None where there is none to be read."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
