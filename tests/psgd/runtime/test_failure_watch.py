"""The thread that watches: signals become exceptions and handlers are put back; a lost launcher ends the process."""

import os
import signal
import subprocess
import sys
import time

from harness import mpi

SIGNALS = """
import os, signal
from psgd.runtime.failure_watch import FailureWatch

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started with it ignored
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
watch = FailureWatch(None)
watch.hook_signals()
watch.start()
for number, wanted in ((signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit), (signal.SIGINT, KeyboardInterrupt)):
    try:
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
    except wanted as error:
        assert wanted is KeyboardInterrupt or error.code == 128 + number
    else:
        raise AssertionError(number)
watch.stop()
assert not watch.is_alive()
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
"""
UNDER_A_LAUNCHER = """
import sys, time
from psgd.runtime.failure_watch import FailureWatch

watch = FailureWatch(None)
assert watch.launcher >= 0
watch.start()
print("ready", flush=True)
time.sleep(60)
"""


def test_signals_that_are_ignored_stay_so():
    code = (
        "import signal; from psgd.runtime.failure_watch import FailureWatch\n"
        "numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP\n"
        "for number in numbers: signal.signal(number, signal.SIG_IGN)\n"
        "FailureWatch(None).hook_signals()\n"
        "assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 3"
    )
    subprocess.run([sys.executable, "-c", code], env=mpi.environment("none"), check=True, timeout=30)


def test_signals_are_exceptions_until_it_stops():
    subprocess.run([sys.executable, "-c", SIGNALS], env=mpi.environment("none"), check=True, timeout=30)


def test_a_process_ends_when_its_launcher_is_gone(tmp_path):
    launcher = tmp_path / "mpirun"  # known by its name
    launcher.write_text(f"#!/bin/sh\n'{sys.executable}' -c '{UNDER_A_LAUNCHER}' &\necho $!\nwait\n")
    launcher.chmod(0o755)
    with subprocess.Popen([str(launcher)], env=mpi.environment("none"), stdout=subprocess.PIPE, text=True) as started:
        pid = int(started.stdout.readline())
        try:
            assert started.stdout.readline() == "ready\n"
            began = time.monotonic()
            started.kill()
            assert started.stdout.read() == ""  # its end is closed only when the process below is gone
            assert time.monotonic() - began < 10
        finally:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)
