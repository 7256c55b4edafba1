"""How a rank of a job that has lost others ends: Open MPI's MPI_Finalize may wait for the dead for ever."""

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from psgd.runtime.ulfm.tolerance import TOLERANCE

if TYPE_CHECKING:
    from mpi4py import MPI


def leave(job: "MPI.Comm", code: int) -> None:
    """Ends this process at once with `code`, without MPI_Finalize, where ranks of the job have died; else returns.

    To be called last, by all that live, when nothing is under way any more.
    """
    living = TOLERANCE.living(job)
    if living.Get_size() == job.Get_size():
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
