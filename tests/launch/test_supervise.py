"""Signals to the launcher: to end, to stop and to continue the job; those that are ignored stay so."""

import os
import signal
import subprocess
import sys
import time

from harness.mpi import environment

from psgd.launch import supervise
from psgd.launch.signal_forwarding import descendants

RUN = """
import os, signal, sys
from psgd.launch import supervise
from psgd.launch.signal_forwarding import Forwarding
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP]
for number in numbers:
    signal.signal(number, signal.SIG_IGN if "ignored" in sys.argv else signal.SIG_DFL)
sent = "; ".join(f"kill -{number:d} $PPID" for number in numbers[: int(sys.argv[1])])
job = ["sh", "-c", f"{sent}; sleep 0.3; exit 7"]
print(*supervise.run(job, os.environ, Forwarding(["nothing"], 1, True), [signal.SIGUSR1, signal.SIGUSR2]))
assert all(signal.getsignal(n) == (signal.SIG_IGN if "ignored" in sys.argv else signal.SIG_DFL) for n in numbers)
"""


def result(*arguments):
    words = [sys.executable, "-c", RUN, *arguments]
    done = subprocess.run(words, env=environment("none"), capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()


def test_a_signal_that_is_ignored_at_the_start_stays_so():
    """As under nohup, or in the background of a script: the job goes on, and ends as it would have."""
    assert result("6", "ignored") == ["7", "0"]
    assert result("5") == ["0", str(int(signal.SIGHUP))]


def test_descendants_are_found_in_sessions_of_their_own():
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(30)']"
    inner = f"import subprocess, sys; subprocess.run({sleeper}, start_new_session=True)"
    child = subprocess.Popen([sys.executable, "-c", inner])
    try:
        limit = time.monotonic() + 20
        while len(below := descendants(child.pid)) < 1 and time.monotonic() < limit:
            time.sleep(0.02)
        assert len(below) == 1
        assert child.pid in descendants(os.getpid())
    finally:
        supervise.kill(child)
    limit = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in below) and time.monotonic() < limit:
        time.sleep(0.02)
    assert descendants(child.pid) == []
