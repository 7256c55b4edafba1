"""Ending together: what stops one rank stops the whole job, soon, with one message and a failing exit code.

MPI_Abort alone is not enough. Under `mpirun --with-ft ulfm` mpirun obeys it and leaves behind the ranks that
are outside MPI, and a killed rank goes unnoticed by all that do not wait for it. So every guarded rank also
has a thread that watches the launcher and, with ULFM, its peers.
"""

import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from psgd.kernels.errors import PeerLostError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

LAUNCHERS = {
    "prterun",
    "prted",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orted",
    "hydra_pmi_proxy",
    "slurmstepd",
}
ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"
TERMINATED = 128 + signal.SIGTERM
ALIKE_S = 0.5  # long enough for one rank, or Open MPI's 0.24 s from SIGTERM to SIGKILL, to end the others
FORWARD_S = 0.1  # for the launcher to read our last words before MPI_Abort kills the pipes
DEADLINE_S = 5.0  # for flush, Revoke and Abort; then the process exits all the same
INSIST_S = 1.0  # from a signal until it is clear that the main thread does not come back from a call
POLL_S = 0.2  # 40 us each time; how soon ULFM knows depends on how often ranks outside MPI make progress

_first = threading.Lock()
_told = [2]


def tell(descriptor: int | None) -> None:
    """Sends last words to a descriptor too, for one whose stderr is a file; None takes that back."""
    _told[1:] = [] if descriptor is None else [descriptor]


def guard(comm: "MPI.Comm") -> contextlib.AbstractContextManager[None]:
    """Context in which a failure of this rank ends the whole job within 10 s. For the `psgd` command.

    An uncaught exception (in any thread), `sys.exit` with anything but 0 or None, SIGINT or SIGTERM: writes
    one message to stderr, flushes, revokes `comm` where the MPI can, aborts, and never returns. The exit code
    is that of `sys.exit`, 2 after a `UsageError` (one line, no traceback), 130 and 143 after the signals,
    else 1. A failure that only follows from another rank's gives one line at most.

    SIGTERM raises SystemExit(143) in the main thread; where that is stuck in a blocking MPI call, the job is
    ended from another thread. Leaving normally aborts nothing and puts the handlers back. With ULFM, seen
    by OMPI_MCA_mpi_ft_enable as `mpirun --with-ft ulfm` sets it, the death of a peer ends this rank too.

    Args:
        comm: all ranks that must end together. Must stay alive in the context.

    Returns:
        The context manager; entering it does not communicate.
    """
    return _guarded(_Rank(comm))


def abort_on_exception(comm: "MPI.Comm | None" = None) -> None:
    """Makes an uncaught exception in any thread of this process end the whole MPI job, from now on.

    For programs that use psgd as a library; psgd hooks nothing unless this is called. Sets `sys.excepthook`
    and `threading.excepthook`, and watches the launcher. `sys.exit` passes no hook and is not seen. Without
    MPI at the time of the exception the hooks found here are called instead. Does not communicate.

    Args:
        comm: the communicator to revoke; None is COMM_WORLD, looked up when needed, so that MPI need not
            have started yet.
    """
    found, found_in_thread = sys.excepthook, threading.excepthook

    def rank() -> "_Rank | None":
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
            return None
        return _Rank(mpi.COMM_WORLD if comm is None else comm)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (ours := rank()) is None:
            found(kind, error, trace)
        else:
            ours.fail(error, command=False)

    def hook_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or isinstance(args.exc_value, SystemExit) or (ours := rank()) is None:
            found_in_thread(args)
        else:
            ours.fail(args.exc_value, command=False)

    sys.excepthook, threading.excepthook = hook, hook_in_thread
    _Watch(None).start()


@contextlib.contextmanager
def _guarded(rank: "_Rank") -> Iterator[None]:
    def hook_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or isinstance(args.exc_value, SystemExit):
            found(args)
        else:
            rank.fail(args.exc_value)

    found, threading.excepthook = threading.excepthook, hook_in_thread
    watch = _Watch(rank)
    watch.hook_signals()
    watch.start()
    try:
        yield
    except BaseException as error:
        forked = rank.pid != os.getpid()
        if forked or (isinstance(error, SystemExit) and error.code in (None, 0)):
            raise
        rank.fail(error)
    finally:
        if rank.pid == os.getpid():
            watch.stop()
        threading.excepthook = found


class _Rank:
    """This process as a member of a job that must end together."""

    def __init__(self, comm: "MPI.Comm") -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.name = f"[{self.rank}/{self.size}] {socket.gethostname()}"
        self.pid, self.ending = os.getpid(), False
        self.turn_s = ALIKE_S if self.rank else 0.0
        self.patience_s = 2.0 + 0.5 * min(self.rank, 6)  # one of the bereaved is enough to tell

    def fail(self, error: BaseException, command: bool = True) -> NoReturn:
        """Ends the job for `error`; from `command`, a UsageError needs no traceback."""
        self.ending = True
        if (cause := _secondary(error)) is not None:
            self.lost(cause)
        if isinstance(error, UsageError) and command:
            where = f" ({self.name})" if self.size > 1 else ""
            self.end(f"psgd: error: {error}{where}", 2, wait_s=self.turn_s)
        if isinstance(error, KeyboardInterrupt):
            self.end(f"psgd: {self.name}: interrupted {_place(error)}", 130, wait_s=self.turn_s)
        if isinstance(error, SystemExit):
            if not isinstance(error.code, int):
                self.end(f"psgd: {self.name}: {error.code}", 1)
            if error.code == TERMINATED:
                self.terminated(_place(error))
            self.end(f"psgd: {self.name}: sys.exit({error.code}) {_place(error)}", error.code)
        # The frame of the guard itself tells a user nothing.
        trace = error.__traceback__
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        self.end(f"psgd: {self.name}: this rank failed and ends the job\n{text.rstrip()}", 1)

    def terminated(self, place: str) -> NoReturn:
        """Ends the job for SIGTERM, silently where it comes from a launcher that is ending the job itself."""
        self.end(f"psgd: {self.name}: SIGTERM {place}", TERMINATED, wait_s=ALIKE_S + self.turn_s)

    def lost(self, cause: str) -> NoReturn:
        """Ends this rank because another failed: that one speaks and aborts first if it still can."""
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

    def end(self, text: str, code: int, wait_s: float = 0.0) -> NoReturn:
        """Says `text` once, in one write, and ends the job with `code` (1 where the system would read 0).

        What all ranks tend to meet at once is told by the one that waits least: it ends the others.
        """
        from mpi4py import MPI

        time.sleep(wait_s)
        code = code & 0xFF or 1
        if not _first.acquire(blocking=False):  # another thread of this rank is at it
            threading.Event().wait()
        # Runs without the GIL, so that neither a full pipe nor an Abort that hangs can keep us.
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        with contextlib.suppress(OSError):
            first, *lines = text.split("\n")
            mine = f"[{self.rank}/{self.size}] " if self.size > 1 else ""
            words = "".join([first, *(f"\n{mine}{line}" for line in lines), "\n"]).encode(errors="backslashreplace")
            for descriptor in _told:
                rest = words
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        time.sleep(FORWARD_S)
        here = threading.current_thread() is threading.main_thread()
        with contextlib.suppress(Exception):
            if here or MPI.Query_thread() == MPI.THREAD_MULTIPLE:
                self.comm.Revoke()
        with contextlib.suppress(Exception):
            MPI.COMM_WORLD.Abort(code)
        os._exit(code)


class _Watch(threading.Thread):
    """Ends this rank when the launcher is gone, a peer is dead, or a signal cannot reach the main thread."""

    def __init__(self, rank: _Rank | None) -> None:
        super().__init__(name="psgd-ending", daemon=True)
        self.rank = rank
        self.ulfm = rank is not None and os.environ.get(ULFM_VARIABLE, "0").lower() in ("1", "true")
        self.pipe, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.seen: set[int] = set()
        self.old: dict[int, Any] = {}
        self.old_wake: int | None = None
        self.poll = select.poll()
        self.poll.register(self.pipe, select.POLLIN)
        self.launcher = -1
        with contextlib.suppress(OSError, AttributeError):  # no /proc or no pidfd: less is watched
            if pid := _launcher():
                self.launcher = os.pidfd_open(pid)
                self.poll.register(self.launcher, select.POLLIN)

    def hook_signals(self) -> None:
        """Turns SIGINT and SIGTERM into exceptions, in a main thread, unless they have handlers already."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self.old[number] = signal.signal(number, self.handle)
        self.old_wake = signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self.unhook)  # a child's SIGTERM is not ours

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raises in the main thread, as soon as that is back in Python."""
        self.seen.add(number)
        if self.rank is not None and self.rank.ending:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def unhook(self) -> None:
        """Puts the signal handlers back, once."""
        if self.old_wake is not None:
            signal.set_wakeup_fd(self.old_wake)
        for number, handler in self.old.items():
            signal.signal(number, handler)
        self.old, self.old_wake = {}, None

    def stop(self) -> None:
        """Puts all back and waits for the thread, so that it makes no MPI call after Finalize."""
        self.unhook()
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake, b"\0")
        self.join()
        for fd in (self.pipe, self.wake, self.launcher):
            if fd >= 0:
                os.close(fd)

    def run(self) -> None:
        """Sleeps until something happens; with ULFM also looks for dead peers."""
        ends_at = float("inf")
        while True:
            patience_s = min(POLL_S, max(0.0, ends_at - time.monotonic()))
            ready = [fd for fd, _ in self.poll.poll(patience_s * 1000 if self.ulfm else None)]
            if self.launcher in ready:
                os._exit(1)
            if self.pipe in ready:
                numbers = os.read(self.pipe, 64)
                if 0 in numbers:
                    return
                for number in numbers:
                    self.insist(number)
            if self.ulfm and self.rank is not None and self.peer_died(self.rank):
                ends_at = min(ends_at, time.monotonic() + self.rank.patience_s)
                if time.monotonic() >= ends_at:
                    self.rank.end_after("a process died")

    def insist(self, number: int) -> None:
        """Ends the job for a signal that our handler should have seen by now but for a blocking call."""
        if self.rank is None or number not in self.old:
            return
        time.sleep(INSIST_S)
        if number not in self.seen and signal.getsignal(number) == self.handle:
            if number == signal.SIGTERM:
                self.rank.terminated("in a blocking call")
            self.rank.end(f"psgd: {self.rank.name}: interrupted in a blocking call", 128 + number)

    def peer_died(self, rank: _Rank) -> bool:
        """Local, needs THREAD_MULTIPLE; the probe is progress where the main thread is outside MPI."""
        from mpi4py import MPI

        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            self.ulfm = False
            return False
        with contextlib.suppress(MPI.Exception, NotImplementedError):
            MPI.COMM_SELF.Iprobe()
            return rank.comm.Get_failed().Get_size() > 0
        return False


def _secondary(error: BaseException | None) -> str | None:
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
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    return f"in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _launcher() -> int:
    """Process id of the nearest ancestor that launches ranks, 0 if there is none."""
    pid = os.getppid()
    while pid > 1:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        if name in LAUNCHERS:
            return pid
        pid = int(rest.split()[1])
    return 0
