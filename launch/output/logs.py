"""Where a rank's lines go: `[rank/size]` in front of them, or a file of the rank's own.

Rank 0 reports the run to the user, without a prefix. All else, of every rank, is warnings and what the user's code
prints: there a line is one write, so that ranks do not cut into each other's, and says whose it is.
"""

import contextlib
import io
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from psgd.kernels.errors import AgreedError
from psgd.launch.output import terminal
from psgd.launch.output.progress import Progress
from psgd.launch.output.text_streams import Both, Lines
from psgd.runtime import job_end

if TYPE_CHECKING:
    from mpi4py import MPI


class Output:
    """What rank 0 says to the user; nothing is said elsewhere.

    Args:
        shown: this is rank 0.
        out, err: where; None is stdout and stderr.
        bar: a terminal for the progress bar; None looks for one, unless `err` is given.
    """

    def __init__(
        self, shown: bool, out: TextIO | None = None, err: TextIO | None = None, bar: TextIO | None = None
    ) -> None:
        self._shown, self._out = shown, out or sys.stdout
        self.progress = Progress(shown, bar, err)

    def result(self, text: str) -> None:
        """Prints the result of the run, on stdout."""
        if self._shown:
            self._out.write(f"{text}\n")
            self._out.flush()


@contextlib.contextmanager
def output(folder: Path | None, comm: "MPI.Comm") -> Iterator[Output]:
    """Sends this rank's lines where they belong. Not collective.

    Args:
        folder: for a file a rank, which stdout and stderr are appended to, also those of MPI itself; None
            puts a prefix before them instead, where there are several ranks.
        comm: the job's ranks.

    Raises:
        OSError: the file cannot be opened.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    if folder is None:
        with _prefixed(f"[{rank}/{size}] " if size > 1 else "", rank == 0) as found:
            yield found
        return
    with _filed(folder / f"rank-{rank:04d}.log", rank, size) as found:
        yield found


def prepare(folder: Path) -> str | None:
    """Makes the folder of the files, and says why a rank could not write there, or None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"--log-dir {folder}: cannot be created: {error.strerror}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"--log-dir {folder}: expected a writable folder, got one that is not writable"
    return None


@contextlib.contextmanager
def _prefixed(prefix: str, first: bool) -> Iterator[Output]:
    found = Output(first)
    before = sys.stdout, sys.stderr
    new = [Lines(stream, prefix) for stream in before] if prefix else []
    try:
        with contextlib.closing(found.progress):
            if new:
                # Rank 0's stdout is the result's alone, which scripts read.
                sys.stdout, sys.stderr = before[0] if first else new[0], new[1]  # type: ignore[assignment]
            try:
                yield found
            finally:
                sys.stdout, sys.stderr = before
    finally:
        for stream in new:
            stream.finish()


@contextlib.contextmanager
def _filed(path: Path, rank: int, size: int) -> Iterator[Output]:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    sys.stderr.flush()
    bar = terminal.find() if rank == 0 else None
    kept = [os.dup(1), os.dup(2)]
    real = [open(descriptor, "w", closefd=False) for descriptor in kept]  # noqa: SIM115 -- open until the end
    copy = open(file, "w", closefd=False)  # noqa: SIM115
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    copy.write(f"-- {when} rank {rank}/{size} on {socket.gethostname()}, process {os.getpid()}\n")
    copy.flush()
    for target in (1, 2):
        os.dup2(file, target)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    both = [Both(stream, copy) for stream in real]
    found = Output(rank == 0, both[0], both[1], real[1] if bar is sys.stderr else bar)  # type: ignore[arg-type]
    job_end.tell(kept[1])
    try:
        with contextlib.closing(found.progress):
            yield found
    except AgreedError:
        _back(kept)
        raise
    _back(kept)


def _back(kept: list[int]) -> None:
    """Gives the descriptors back. After a failure they stay as they are: the job ends, and both report it."""
    sys.stdout.flush()
    sys.stderr.flush()
    for target, descriptor in zip((1, 2), kept, strict=True):
        os.dup2(descriptor, target)
    job_end.tell(None)
