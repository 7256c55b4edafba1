"""Stdout and stderr of a job that go to one place, as with `2>&1`: then in the order in which a rank writes them.

mpiexec passes them on by two ways, so that a summary could come before the last lines of progress. Where both end in
one file anyway, ranks write both to stdout. Another launcher than psgd's does not say whether they do.
"""

import contextlib
import os

VARIABLE = "PSGD_MERGED"


def find() -> bool:
    """Whether this process's stdout and stderr are one file, pipe or terminal."""
    try:
        return os.path.sameopenfile(1, 2)
    except OSError:
        return False


def follow() -> None:
    """Makes stderr of this rank its stdout, where the launcher has found that they are one."""
    if VARIABLE in os.environ:
        with contextlib.suppress(OSError):
            os.dup2(1, 2)
