"""How a rank ends the whole job: one message, flush, revoke, abort, exit."""

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from psgd.kernels.errors import AgreedError, DivergedError, OutputError, PeerLostError, UsageError
from psgd.runtime.launcher_env import place

if TYPE_CHECKING:
    from mpi4py import MPI

INTERRUPTED, TERMINATED, HUNG_UP = (128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
DIVERGED = 3
"""Exit code of a run whose gradients or parameters are no longer finite."""
LOST = 4
"""Exit code of a run that is complete, though ranks died on the way."""
ADVICE_S = 1.0  # for the advice to be found
ALIKE_S = 0.5  # long enough for one rank, or Open MPI's 0.24 s from SIGTERM to SIGKILL, to end the others
FORWARD_S = 0.1  # for the launcher to read the last message before MPI_Abort kills the pipes
DEADLINE_S = 5.0  # for flush, Revoke and Abort; then the process exits all the same

_OURS = frozenset(str(Path(__file__).with_name(f"{name}.py")) for name in ("job_end", "fail_together", "failure_watch"))
"""Files whose frames are no news to a user."""
_first = threading.Lock()
_outputs = [2]


def tell(descriptor: int | None) -> None:
    """Writes the last message to a descriptor too, where stderr is a file; None takes that back."""
    _outputs[1:] = [] if descriptor is None else [descriptor]


class JobRank:
    """This process as a member of a job that must end together."""

    def __init__(self, comm: "MPI.Comm", advice: Callable[[], str] | None = None) -> None:
        self.comm, self.advice, self.rank, self.size = comm, advice, comm.Get_rank(), comm.Get_size()
        self.name = f"[{self.rank}/{self.size}] {socket.gethostname()}"
        self.pid, self.ending = os.getpid(), False
        self.turn_s = ALIKE_S if self.rank else 0.0
        self.patience_s = 2.0 + 0.5 * min(self.rank, 6)  # one report is enough

    def fail(self, error: BaseException, command: bool = True) -> NoReturn:
        """Ends the job for `error`; from `command`, a UsageError needs no traceback."""
        self.ending = True
        if isinstance(error, DivergedError) and command:  # the same on all ranks
            self.end(f"psgd: error: {error}", DIVERGED, wait_s=self.turn_s)
        if (cause := secondary(error)) is not None:
            self.lost(cause)
        if isinstance(error, UsageError) and command:
            where = f" ({self.name})" if self.size > 1 else ""
            self.end(f"psgd: error: {error}{where}", 2, wait_s=self.turn_s)
        if isinstance(error, OutputError):
            self.end(f"psgd: error: {error}", 1)
        if isinstance(error, MemoryError) and command:
            self.end(f"psgd: error: {self.name}: not enough memory: {error}", 1, wait_s=self.turn_s)
        if isinstance(error, KeyboardInterrupt):
            self.end(f"psgd: {self.name}: interrupted {_place(error)}", 130, wait_s=self.turn_s)
        if isinstance(error, SystemExit):
            if not isinstance(error.code, int):
                self.end(f"psgd: {self.name}: {error.code}", 1)
            if error.code in (TERMINATED, HUNG_UP):
                self.signalled(error.code - 128, _place(error))
            self.end(f"psgd: {self.name}: sys.exit({error.code}) {_place(error)}", error.code)
        # The frame of the guard itself says nothing to a user.
        trace = error.__traceback__
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        code = 2 if isinstance(error, UsageError) else 1
        wait_s = self.turn_s if isinstance(error, AgreedError) else 0.0  # the same on all ranks: told once
        self.end(f"psgd: {self.name}: this rank failed and ends the job\n{text.rstrip()}", code, wait_s)

    def signalled(self, number: int, place: str) -> NoReturn:
        """Ends the job for SIGTERM or SIGHUP, silently where a launcher that sends it is ending the job itself."""
        name = signal.Signals(number).name
        self.end(f"psgd: {self.name}: {name} {place}", 128 + number, wait_s=ALIKE_S + self.turn_s)

    def lost(self, cause: str) -> NoReturn:
        """Ends this rank because another failed: that one reports and aborts first if it still can."""
        time.sleep(self.patience_s)
        self.end_after(cause)

    def end_after(self, cause: str) -> NoReturn:
        """Ends this rank with a line on the failure of another."""
        self.end(f"psgd: {self.name}: ended because of another rank: {cause}{self.dead()}", 1)

    def dead(self) -> str:
        """Names the ranks that ULFM knows to be dead, or says nothing."""
        with contextlib.suppress(Exception):
            group = self.comm.Get_failed()
            ranks = group.Translate_ranks(None, self.comm.Get_group())
            if ranks:
                return f" (dead: rank {', '.join(map(str, ranks))})"
        return ""

    def alone(self) -> bool:
        """Whether ULFM knows all others to be dead."""
        with contextlib.suppress(Exception):
            return bool(self.comm.Get_failed().Get_size() == self.size - 1)
        return False

    def end(self, text: str, code: int, wait_s: float = 0.0) -> NoReturn:
        """Writes `text` once, in one write, and ends the job with `code` (1 where the system would read 0).

        Where all ranks fail at once, the one that waits least reports it, and ends the others.
        """
        from mpi4py import MPI

        if self.advice is not None and code in (INTERRUPTED, TERMINATED, HUNG_UP):
            self._advise(self.advice)
        time.sleep(wait_s)
        code = code & 0xFF or 1
        if not _first.acquire(blocking=False):  # another thread of this rank ends the job
            threading.Event().wait()
        # Runs without the GIL, so that neither a full pipe nor an Abort that hangs delays the exit.
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        first, *lines = text.split("\n")
        mine = f"[{self.rank}/{self.size}] " if self.size > 1 else ""
        words = "".join([first, *(f"\n{mine}{line}" for line in lines), "\n"]).encode(errors="backslashreplace")
        for descriptor in _outputs:
            with contextlib.suppress(OSError):  # one that is full or closed must not cost the other
                rest = words
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        time.sleep(FORWARD_S)
        here = threading.current_thread() is threading.main_thread()
        with contextlib.suppress(Exception):
            if here or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
                self.comm.Revoke()
        if MPI.COMM_WORLD.Get_size() == 1 and place() is None:
            os._exit(code)  # nobody else is to be ended, and Open MPI would say that it cannot find what to say
        if self.size > 1 and self.alone():
            os._exit(code)  # else mpirun would return 0
        with contextlib.suppress(Exception):
            MPI.COMM_WORLD.Abort(code)
        os._exit(code)

    def _advise(self, advice: Callable[[], str]) -> None:
        """Writes the advice, once, before a launcher kills this rank. A file system that hangs delays nothing."""
        self.advice = None

        def write() -> None:
            with contextlib.suppress(OSError):
                os.write(2, f"psgd: {advice()}\n".encode(errors="backslashreplace"))

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(ADVICE_S)


def secondary(error: BaseException | None) -> str | None:
    """What `error` says of another rank's failure, if it or what it came from says so."""
    mpi = sys.modules.get("mpi4py.MPI")
    while error is not None:
        if isinstance(error, PeerLostError):
            return str(error)
        if mpi is not None and isinstance(error, mpi.Exception):
            # An MPI without ULFM gives all these names one meaningless value.
            classes = {mpi.ERR_REVOKED, mpi.ERR_PROC_FAILED, mpi.ERR_PROC_FAILED_PENDING} - {mpi.ERR_UNKNOWN}
            if error.Get_error_class() in classes:
                return str(error.Get_error_string())
        error = error.__cause__ or error.__context__
    return None


def _place(error: BaseException) -> str:
    """Names the innermost Python frame of `error` that is not ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in _OURS]
    return f"in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
