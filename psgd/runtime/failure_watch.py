"""A thread that watches for what the main thread may not notice: a lost launcher, a dead peer, a signal."""

import contextlib
import os
import select
import signal
import threading
import time
from types import FrameType
from typing import Any

from psgd.runtime.job_end import JobRank
from psgd.runtime.launcher_env import LAUNCHERS, ancestors
from psgd.runtime.ulfm import switch
from psgd.runtime.ulfm.tolerance import TOLERANCE

INSIST_S = 1.0  # from a signal until it is clear that the main thread does not come back from a call
POLL_S = 0.2  # 40 us each time; how soon ULFM knows depends on how often ranks outside MPI make progress


class FailureWatch(threading.Thread):
    """Ends this rank when the launcher is gone, a signal cannot reach the main thread, or a peer is dead.

    But for peers without which the run goes on (`psgd.runtime.ulfm.tolerance`).
    """

    def __init__(self, rank: JobRank | None) -> None:
        super().__init__(name="psgd-ending", daemon=True)
        self.rank = rank
        self.ulfm = rank is not None and switch.enabled()
        self.pipe, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.seen: set[int] = set()
        self.old: dict[int, Any] = {}
        self.old_wake: int | None = None
        self.poll = select.poll()
        self.poll.register(self.pipe, select.POLLIN)
        self.launcher = -1
        with contextlib.suppress(OSError, AttributeError):  # no /proc or no pidfd: less is watched
            if pid := next((pid for pid, name in ancestors() if name in LAUNCHERS), 0):
                self.launcher = os.pidfd_open(pid)
                self.poll.register(self.launcher, select.POLLIN)

    def hook_signals(self) -> None:
        """Turns SIGINT, SIGTERM and SIGHUP into exceptions, in a main thread, unless they have handlers already.

        Python knows of its own handlers only: the one of SIGHUP is taken from UCX, which would swallow it.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
            if number != signal.SIGINT:
                self.rank.signalled(number, "in a blocking call")
            self.rank.end(f"psgd: {self.rank.name}: interrupted in a blocking call", 128 + number)

    def peer_died(self, rank: JobRank) -> bool:
        """Local, needs THREAD_MULTIPLE; the probe is progress where the main thread is outside MPI."""
        from mpi4py import MPI

        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            self.ulfm = False
            return False
        with contextlib.suppress(MPI.Exception, NotImplementedError):
            MPI.COMM_SELF.Iprobe()
            if TOLERANCE.look is not None:
                return TOLERANCE.look()
            dead = rank.comm.Get_failed()
            if dead.Get_size():
                return bool(TOLERANCE.ends_at(dead.Translate_ranks(None, rank.comm.Get_group())))
        return False
