"""Ending together: what stops one rank stops the whole job, soon, with one message and a failing exit code.

MPI_Abort alone is not enough. Under `mpirun --with-ft ulfm` mpirun obeys it and leaves behind the ranks that
are outside MPI, and a killed rank goes unnoticed by all that do not wait for it. So every guarded rank also
has a thread that watches the launcher and, with ULFM, its peers (`failure_watch`).
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from psgd.runtime.failure_watch import FailureWatch
from psgd.runtime.job_end import JobRank, secondary
from psgd.runtime.ulfm.tolerance import TOLERANCE

if TYPE_CHECKING:
    from mpi4py import MPI


def guard(comm: "MPI.Comm", advice: Callable[[], str] | None = None) -> contextlib.AbstractContextManager[None]:
    """Context in which a failure of this rank ends the whole job within 10 s. For the `psgd` command.

    An uncaught exception (in any thread), `sys.exit` with anything but 0 or None, SIGINT, SIGTERM or SIGHUP: writes
    one message to stderr, flushes, revokes `comm` where the MPI can, aborts, and never returns. The exit code
    is that of `sys.exit`, 2 after a `UsageError` (one line, no traceback), 130, 143 and 129 after the signals,
    else 1. A failure that only follows from another rank's gives one line at most.

    SIGTERM raises SystemExit(143) in the main thread; where that is stuck in a blocking MPI call, the job is
    ended from another thread. Leaving normally aborts nothing and puts the handlers back. With ULFM, seen
    by OMPI_MCA_mpi_ft_enable as `mpirun --with-ft ulfm` sets it, the death of a peer ends this rank too.

    Args:
        comm: all ranks that must end together. Must stay alive in the context.
        advice: makes a line for the user, written first of all when a signal ends this rank.

    Returns:
        The context manager; entering it does not communicate.
    """
    return _guarded(JobRank(comm, advice))


def abort_on_exception(comm: "MPI.Comm | None" = None) -> None:
    """Makes an uncaught exception in any thread of this process end the whole MPI job, from now on.

    For programs that use psgd as a library; psgd installs no hooks unless this is called. Sets `sys.excepthook`
    and `threading.excepthook`, and watches the launcher. `sys.exit` calls no hook, so it is not noticed. Without
    MPI at the time of the exception, the hooks that were installed before are called instead. Does not communicate.

    Args:
        comm: the communicator to revoke; None is COMM_WORLD, looked up when needed, so that MPI need not
            have started yet.
    """
    found, found_in_thread = sys.excepthook, threading.excepthook

    def rank() -> JobRank | None:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
            return None
        return JobRank(mpi.COMM_WORLD if comm is None else comm)

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
    FailureWatch(None).start()


@contextlib.contextmanager
def _guarded(rank: JobRank) -> Iterator[None]:
    def hook_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or isinstance(args.exc_value, SystemExit):
            found(args)
        elif TOLERANCE.look is None or secondary(args.exc_value) is None:  # else the main thread sees to it
            rank.fail(args.exc_value)

    found, threading.excepthook = threading.excepthook, hook_in_thread
    watch = FailureWatch(rank)
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
