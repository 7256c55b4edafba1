"""Hands signals on to the ranks of a job: to each once, and only when it is ready for them; stops and resumes ranks.

mpiexecs differ: Open MPI's hands SIGUSR1 and SIGUSR2 on, MPICH's dies of the second. And a rank that has just started
would die of either. So on one host each rank gets the signal from here, as soon as it has a handler.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from psgd.runtime.launcher_env import LAUNCHERS, name_of, parent

STOP = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STARTING_S = 2.0  # for mpiexec to have started all ranks, when it is stopped as it begins


class Forwarding:
    """Signals on their way.

    Args:
        program: what each rank runs.
        ranks: how many.
        local: all run on this host; else mpiexec gets the signal, to hand it on as it can.
    """

    def __init__(self, program: Sequence[str], ranks: int, local: bool) -> None:
        self._words = [os.fsencode(word) for word in program]
        self._ranks, self._local = ranks, local
        self._reached: dict[int, set[int]] = {}  # by signal, the ranks that have it

    def wanted(self, number: int) -> None:
        """The ranks are to get this signal. May be called in its handler."""
        self._reached[number] = set()

    def look(self, mpiexec: int) -> None:
        """Sends what there is to whom is ready; to be called again and again."""
        for number, reached in list(self._reached.items()):
            if not self._local:
                _send(mpiexec, number)
            else:
                for pid in set(self._find(mpiexec)) - reached:
                    if catches(pid, number) and _send(pid, number):
                        reached.add(pid)
            if (not self._local or len(reached) >= self._ranks) and self._reached.get(number) is reached:
                del self._reached[number]

    def stop(self, mpiexec: int) -> list[int]:
        """Stops the ranks, also those that mpiexec is still about to start. Returns whom `resume` is to have.

        mpiexec itself goes on: it ends the ranks should this process be killed meanwhile.
        """
        if not self._local:
            _send(mpiexec, signal.SIGTSTP)  # Open MPI's hands it on, as SIGSTOP
            return [mpiexec]
        stopped: list[int] = []
        limit = time.monotonic() + STARTING_S
        while True:
            new = [pid for pid in descendants(mpiexec) if pid not in stopped and name_of(pid) not in LAUNCHERS]
            stopped += [pid for pid in new if _send(pid, signal.SIGSTOP)]
            if (len(self._find(mpiexec)) >= self._ranks and not new) or time.monotonic() > limit:
                return stopped
            time.sleep(0.02)

    def resume(self, stopped: Sequence[int]) -> None:
        """Lets those go on that `stop` has stopped."""
        for pid in stopped:
            _send(pid, signal.SIGCONT)

    def _find(self, mpiexec: int) -> list[int]:
        """Processes that run the program, without those that they have forked."""
        found: list[int] = []
        for pid in descendants(mpiexec):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                if words == self._words and parent(pid)[1] not in found:
                    found.append(pid)
        return found


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def descendants(pid: int) -> list[int]:
    """Lists the processes started by `pid`, directly or not, that still run."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                child = int(entry.name)
                children.setdefault(parent(child)[1], []).append(child)
    found = list(children.get(pid, []))
    for child in found:  # grows as it is walked
        found += children.get(child, [])
    return found


class Pauses:
    """How long this process was stopped."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@contextlib.contextmanager
def follow(pid: int) -> Iterator[Pauses]:
    """Inside the block, SIGTSTP and its like stop `pid` and all below it until this process continues.

    Launchers, and whoever has started one, go on: they end their ranks should this process be killed meanwhile. A
    signal that is ignored or has a handler stays so; outside the main thread nothing is done.
    """
    pauses = Pauses()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped = _stop_all(pid)
        began = time.monotonic()
        # One that ends this process waits until the others go on: the stopped would not hear of its end.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _END)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # stops here; a process that no shell waits for does not stop
        signal.signal(number, stop)
        for each in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
        pauses.seconds += time.monotonic() - began
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    ours = threading.current_thread() is threading.main_thread()
    numbers = [number for number in STOP if ours and signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield pauses
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _stop_all(pid: int) -> list[int]:
    """Stops them, also those that are started meanwhile; returns whom it has stopped."""
    stopped: list[int] = []
    while new := [each for each in [pid, *descendants(pid)] if each not in stopped and not _launches(each)]:
        for each in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        stopped += new
    return stopped


def _launches(pid: int) -> bool:
    return any(name_of(each) in LAUNCHERS for each in [pid, *descendants(pid)])
