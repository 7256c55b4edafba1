"""What is said of compilation, on stderr: by one process, since all ranks tend to meet the same."""

import contextlib
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator

from psgd.kernels.cache.code_store import CodeStore

SILENT_S = 1.0
"""Seconds of compilation before a line says so."""
_FAR_SILENT_S = 30.0
_RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_RANK_ON_NODE = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID")

_said: set[str] = set()
_depth, _spent = 0, 0.0


@contextlib.contextmanager
def compiling(store: CodeStore) -> Iterator[None]:
    """Code is compiled in here, or waited for. One rank says so once that has taken `SILENT_S` in all.

    It is one on rank 0's node; on others one speaks much later: rank 0 may have nothing to compile itself.
    """
    global _depth, _spent  # under Numba's lock
    timer = None
    if _depth == 0 and "compiling" not in _said:
        patience = SILENT_S if _number(_RANK) == _number(_RANK_ON_NODE) else _FAR_SILENT_S
        timer = threading.Timer(max(0.0, patience - _spent), _say_compiling, (store,))
        timer.daemon = True
        timer.start()
    began, _depth = time.monotonic(), _depth + 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            _spent += time.monotonic() - began
        if timer is not None:
            timer.cancel()


def _say_compiling(store: CodeStore) -> None:
    kept = "" if store.folder is None else f" (once; cached in {store.folder})"
    _say(store, "compiling", f"compiling for this processor{kept}")


def warn(store: CodeStore, kind: str, text: str) -> None:
    """Says a warning, unless one of its kind was said."""
    _say(store, kind, f"warning: {text}")


def _say(store: CodeStore, kind: str, text: str) -> None:
    if kind in _said:
        return
    _said.add(kind)
    job = next((os.environ[name] for name in _JOB if name in os.environ), str(os.getppid()))
    first = store.first(f"{kind}-{zlib.crc32(job.encode()) % 64}")
    if first or (first is None and _number(_RANK) in (None, 0)):
        far = _number(_RANK) != _number(_RANK_ON_NODE)
        _print(f"{socket.gethostname() + ': ' if far else ''}{text}")


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no stderr, or a closed one
        sys.stderr.write(f"psgd: {text}\n")
        sys.stderr.flush()


def _number(variables: tuple[str, ...]) -> int | None:
    """This process's number in its job, or on its node, as its launcher says; None where it has none."""
    return next((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdecimal()), None)
