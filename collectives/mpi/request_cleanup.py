"""Taking requests back, also those that can no longer end."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

_PATIENCE_S = 0.1


def close(receives: Sequence[MPI.Request], sends: Sequence[MPI.Request]) -> None:
    """Frees requests, active ones too. Blocks for a moment at most.

    A receive that still waits is cancelled. What cannot end, because its peer is gone, keeps its buffer for ever:
    MPI may touch it until it is finalized, which is after Python has freed all that it owns.
    """
    for request in receives:
        if not _ended(request):
            request.Cancel()
    limit = time.monotonic() + _PATIENCE_S
    for request in (*receives, *sends):
        while not (done := _ended(request)) and time.monotonic() < limit:
            time.sleep(1e-3)
        if not done:
            keep_for_ever(request)
        elif request:  # persistent: others are gone once they are done
            request.Free()


def _ended(request: MPI.Request) -> bool:
    """Whether MPI is done with it. One that failed, since its peer is dead, is no news here."""
    try:
        return bool(request.Test())
    except MPI.Exception:
        return True


def keep_for_ever(thing: Any) -> None:
    """Makes an object immortal, and with it what it refers to: a request holds its buffer."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
