"""Runs mpiexec to its end, and hands on to the job what comes meanwhile: signals to end, to stop, and to the ranks.

Where mpiexec does not say which rank ended first, `FirstEnded` does; `StartWatch` ends a job that cannot begin.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from psgd.kernels.notice import say
from psgd.launch.output.relay import Relays
from psgd.launch.signal_forwarding import STOP, Forwarding, descendants
from psgd.runtime.launcher_env import rank_of

GRACE_S = 3.0
_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]


def run(
    words: Sequence[str],
    env: Mapping[str, str],
    forwarding: Forwarding,
    forward: Sequence[int],
    look: Callable[[int], None] | None = None,
    survives: bool = False,
) -> tuple[int, int]:
    """Runs mpiexec to its end; returns its exit code, and the signal that ended it, or 0. Blocks.

    It gets a session of its own: a terminal's Ctrl-C and Ctrl-Z reach this process only.

    Args:
        words: mpiexec's argument list.
        env: its environment.
        forwarding: knows the ranks.
        forward: signals that are for the ranks.
        look: called with mpiexec's process again and again.
        survives: the job goes on without ranks that die.
    """
    caught: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    def forward_signal(number: int, frame: FrameType | None) -> None:
        forwarding.wanted(number)

    def stop(number: int, frame: FrameType | None) -> None:
        stopped = forwarding.stop(process.pid) if process is not None else None
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # stops here; a process that no shell waits for does not stop, and continues
        signal.signal(number, stop)
        if stopped is not None:
            forwarding.resume(stopped)

    handlers: dict[int, Handler] = {**dict.fromkeys(_END, note), **dict.fromkeys(STOP, stop)}
    handlers |= dict.fromkeys(forward, forward_signal)
    # One that was ignored when the command started, as by nohup, stays ignored.
    before = {n: signal.signal(n, each) for n, each in handlers.items() if signal.getsignal(n) != signal.SIG_IGN}
    try:
        relays = Relays(survives)
        process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=relays.ends[0],
            stderr=relays.ends[1],
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),  # noqa: PLW1509 -- no threads here
        )
        relays.start()
        try:
            while not caught:
                with contextlib.suppress(subprocess.TimeoutExpired):  # a signal alone would not end the wait
                    code = process.wait(timeout=0.2)
                    if code >= 0:
                        return relays.finish(code), 0
                    code = relays.finish(128 - code)
                    say(f"error: mpiexec was ended by signal {code - 128} ({signal.strsignal(code - 128)})")
                    return code, 0
                forwarding.look(process.pid)
                if look is not None:
                    look(process.pid)
            _end(process, caught)
            return 0, caught[0]
        finally:
            if process.poll() is None:
                kill(process)
            relays.finish(0, waits=False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with(parent: int) -> Callable[[], None] | None:
    """Makes what Popen calls in the child: SIGTERM for it should its parent, this process, be killed outright."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1

    def ask() -> None:
        prctl(pr_set_pdeathsig, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _end(process: "subprocess.Popen[bytes]", caught: list[int]) -> None:
    """Lets mpiexec end its ranks; kills all after `GRACE_S`, or at the second signal."""
    process.terminate()
    limit = time.monotonic() + GRACE_S
    while process.poll() is None and time.monotonic() < limit and len(caught) == 1:
        time.sleep(0.02)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kills mpiexec and all below it, found before it dies: ranks may lead sessions of their own."""
    below = descendants(process.pid)
    for pid in [process.pid, *below]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class FirstEnded:
    """Watches which rank of a job on this host ends first: MPICH's mpiexec names a process, and ends all of them.

    Args:
        size: how many there are.

    Attributes:
        ranks: those that ended first: one, unless several were seen to at once; none as long as all run.
    """

    def __init__(self, size: int) -> None:
        self.ranks: list[int] = []
        self._size = size
        self._files: dict[int, int] = {}  # by rank; of its process
        self._poll = select.poll()

    @property
    def names(self) -> str:
        """Their numbers, as a message has them."""
        return ", ".join(map(str, self.ranks))

    def look(self, mpiexec: int) -> None:
        """Looks for ranks that have been started; to be called again and again. Does not block."""
        if len(self._files) == self._size or not hasattr(os, "pidfd_open"):
            return
        for pid in descendants(mpiexec):
            rank = rank_of(pid)
            if rank is not None and rank not in self._files:
                with contextlib.suppress(OSError):
                    self._files[rank] = os.pidfd_open(pid)
                    self._poll.register(self._files[rank], select.POLLIN)
        if len(self._files) == self._size:
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        ended = {file for file, _ in self._poll.poll()}
        self.ranks = sorted(rank for rank, file in self._files.items() if file in ended)


class StartWatch:
    """Ends a job of which a rank dies before it has begun: MPI that survives deaths would wait in MPI_Init for ever.

    Args:
        size: how many ranks there are.
        begun: whether MPI has started on all of them.
        patience_s: from the first rank that was seen until all must have been.

    Attributes:
        ranks: those that died; none as long as all live.
    """

    def __init__(self, size: int, begun: Callable[[], bool], patience_s: float = 8.0) -> None:
        self.ranks: list[int] = []
        self._begun: Callable[[], bool] | None = begun
        self._size, self._patience_s = size, patience_s
        self._limit = float("inf")
        self._seen: dict[int, int] = {}  # by rank; its process
        self._missed: set[int] = set()  # ranks that were not there at the look before

    def look(self, mpiexec: int) -> None:
        """Looks for ranks that have died; to be called again and again. Does not block."""
        if self._begun is None:
            return
        found = [(rank, pid) for pid in descendants(mpiexec) if (rank := rank_of(pid)) is not None]
        for rank, pid in found:  # a process that a rank has started comes behind it, with the same variables
            self._seen.setdefault(rank, pid)
        if found and self._limit == float("inf"):
            self._limit = time.monotonic() + self._patience_s
        living = {pid for _, pid in found}
        missing = {rank for rank, pid in self._seen.items() if pid not in living}
        if time.monotonic() > self._limit:
            missing |= set(range(self._size)).difference(self._seen)
        gone, self._missed = missing & self._missed, missing  # a program that starts another has no variables meanwhile
        if self._begun():  # asked last: a rank that is gone by now may have ended well
            self._begun = None
        elif gone:
            self.ranks, self._begun = sorted(gone), None
            with contextlib.suppress(ProcessLookupError):
                os.kill(mpiexec, signal.SIGTERM)
