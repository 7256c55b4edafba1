"""Where a rank's lines go: `[rank/size]` in front of them, or a file of the rank's own.

Rank 0 reports the run to the user, without a prefix. All else, of every rank, is warnings and what the user's code
prints: there a line is one write, so that ranks do not cut into each other's, and says whose it is.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from psgd.kernels.errors import AgreedError, OutputError
from psgd.launch.output import standard_streams, terminal
from psgd.launch.output.progress import Progress
from psgd.launch.output.text_streams import Both, Lines
from psgd.runtime import job_end
from psgd.runtime.new_files import lose, make_folder, open_text

if TYPE_CHECKING:
    from mpi4py import MPI


class Output:
    """What rank 0 says to the user, or the rank that goes on in its place.

    Args:
        shown: this is rank 0: it shows the progress.
        out, err: where; None is stdout and stderr.
        bar: a terminal for the progress bar; None looks for one, unless `err` is given.

    Attributes:
        lost: why the result could not be printed, or None.
    """

    def __init__(
        self, shown: bool, out: TextIO | None = None, err: TextIO | None = None, bar: TextIO | None = None
    ) -> None:
        self._out = out or sys.stdout
        self.progress = Progress(shown, bar, err)
        self.lost: OutputError | None = None

    def result(self, text: str) -> None:
        """Prints the result of the run, on stdout; to be called where it is."""
        try:
            self._out.write(f"{text}\n")
            self._out.flush()
        except OutputError as error:
            self.lost = error


@contextlib.contextmanager
def output(folder: Path | None, comm: "MPI.Comm") -> Iterator[Output]:
    """Sends this rank's lines where they belong. Not collective.

    Args:
        folder: for a file a rank, which stdout and stderr are appended to, also those of MPI itself; None
            puts a prefix before them instead, where there are several ranks. So it is too where a disk is full.
        comm: the job's ranks.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    file = None
    if folder is not None:
        path = folder / f"rank-{rank:04d}.log"
        try:
            file = open_text(path, append=True)
        except OSError as error:
            lose(f"--log-dir {path}", error)
    if file is None:
        with _prefixed(f"[{rank}/{size}] " if size > 1 else "", rank == 0) as found:
            yield found
    else:
        with file, _filed(file, f"--log-dir {path}", rank, size) as found:
            yield found


def prepare(folder: Path) -> str | None:
    """Makes the folder of the files, and says why a rank could not write there, or None."""
    try:
        make_folder(folder)
    except OSError as error:
        return f"--log-dir {folder}: cannot be created: {error.strerror}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"--log-dir {folder}: expected a writable folder, got one that is not writable"
    return None


@contextlib.contextmanager
def _prefixed(prefix: str, first: bool) -> Iterator[Output]:
    found = Output(first)
    with contextlib.ExitStack() as stack:
        if prefix:
            out, err = Lines(sys.stdout, prefix), Lines(sys.stderr, prefix)
            stack.callback(out.finish)
            stack.callback(err.finish)
            # Rank 0's stdout is the result's alone, which scripts read.
            stack.enter_context(contextlib.redirect_stdout(sys.stdout if first else out))
            stack.enter_context(contextlib.redirect_stderr(err))
        stack.callback(found.progress.close)
        yield found


@contextlib.contextmanager
def _filed(file: TextIO, what: str, rank: int, size: int) -> Iterator[Output]:
    sys.stdout.flush()
    sys.stderr.flush()
    bar = terminal.find() if rank == 0 else None
    kept = [os.dup(1), os.dup(2)]
    real_out = standard_streams.text(kept[0], standard_streams.lose_output)
    real_err = standard_streams.text(kept[1], standard_streams.lose_silently)

    def failed(error: OSError) -> None:
        lose(what, error, real_err)

    for target in (1, 2):
        os.dup2(file.fileno(), target)
    out, err, copy = (standard_streams.text(number, failed, "utf-8") for number in (1, 2, file.fileno()))
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    copy.write(f"-- {when} rank {rank}/{size} on {socket.gethostname()}, process {os.getpid()}\n")
    found = Output(
        rank == 0,
        Both(real_out, copy),  # type: ignore[arg-type]
        Both(real_err, copy),  # type: ignore[arg-type]
        real_err if bar is sys.stderr else bar,
    )

    def back() -> None:
        out.flush()
        err.flush()
        for target, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, target)
        job_end.tell(None)

    job_end.tell(kept[1])
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.closing(found.progress):
            yield found
    except AgreedError:
        back()
        raise
    back()  # after a failure they stay as they are: the job ends, and both report it
