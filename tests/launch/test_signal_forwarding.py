"""Signals for ranks go to whom is ready for them, once, and not to their children. Ctrl-Z stops all below."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from psgd.launch import signal_forwarding
from psgd.launch.signal_forwarding import Forwarding, catches

RANK = """
import os, signal, sys, time
time.sleep(0.3)
signal.signal(signal.SIGUSR2, lambda *_: os.write(1, b"heard "))
child = os.fork()
if child == 0:
    time.sleep(9)
    os._exit(0)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
"""


def test_each_rank_hears_it_once_and_when_it_can(tmp_path):
    program = [sys.executable, "-c", RANK]
    files = [tmp_path / "0", tmp_path / "1"]
    ranks = []
    for file in files:
        with file.open("w") as out:
            ranks.append(subprocess.Popen(program, stdin=subprocess.PIPE, stdout=out))
    forwarding = Forwarding(program, 2, local=True)
    forwarding.wanted(signal.SIGUSR2)
    limit = time.monotonic() + 10
    while not all(file.read_text() for file in files) and time.monotonic() < limit:
        forwarding.look(os.getpid())  # kills nobody who is not ready
        time.sleep(0.02)
    for _ in range(5):
        forwarding.look(os.getpid())
        time.sleep(0.02)
    assert catches(ranks[0].pid, signal.SIGUSR2) and not catches(ranks[0].pid, signal.SIGUSR1)
    for rank in ranks:
        rank.communicate(timeout=10)
        assert rank.returncode == 0
    assert [file.read_text() for file in files] == ["heard ", "heard "]


LIMIT_S = 30.0
# Starts a process that leads a session and has a child of its own; both count. Prints their pids.
PARENT = """
import subprocess, sys
from psgd.launch import signal_forwarding
child = "import os, time; os.fork(); os.write(1, (str(os.getpid()) + chr(10)).encode()); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, start_new_session=True)
pids = [process.stdout.readline().strip() for _ in range(2)]
with signal_forwarding.follow(process.pid) as pauses:
    print(*pids, flush=True)
    sys.stdin.readline()
    print(pauses.take() > 0, pauses.take(), flush=True)
process.kill()
sys.stdin.readline()
"""


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(holds):
    limit = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture
def parent():
    """In a process group of its own, as a shell makes one; it stops, since its parent is of the same session."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    process.below = [int(pid) for pid in process.stdout.readline().split()]
    yield process
    for pid in (process.pid, *process.below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("number", signal_forwarding.STOP)
def test_it_stops_and_goes_on_with_all_below(parent, number):
    everyone = [parent.pid, *parent.below]
    assert len(everyone) == 3
    for _ in range(2):
        parent.send_signal(number)
        until(lambda: all(state(pid) == "T" for pid in everyone))
        parent.send_signal(signal.SIGCONT)
        until(lambda: all(state(pid) != "T" for pid in everyone))
    parent.stdin.write("\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == "True 0.0\n", "the time that it stood still is known"


def test_who_is_ended_meanwhile_leaves_nobody_stopped(parent):
    parent.send_signal(signal.SIGTSTP)
    until(lambda: all(state(pid) == "T" for pid in parent.below) and state(parent.pid) == "T")
    parent.send_signal(signal.SIGTERM)
    parent.send_signal(signal.SIGCONT)
    assert parent.wait(LIMIT_S) == -signal.SIGTERM
    until(lambda: all(state(pid) != "T" for pid in parent.below))


def test_what_is_ignored_or_handled_stays_so():
    before = {number: signal.getsignal(number) for number in signal_forwarding.STOP}
    handled = lambda number, frame: None  # noqa: E731
    try:
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        signal.signal(signal.SIGTTIN, handled)
        with signal_forwarding.follow(os.getpid()):
            assert signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTTIN) is handled
            assert callable(signal.getsignal(signal.SIGTTOU)) is (before[signal.SIGTTOU] == signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTTOU) == before[signal.SIGTTOU]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_launchers_go_on(monkeypatch):
    """They end their ranks should this process be killed; so does who has started one."""
    tree, names = {1: [2, 3], 2: [], 3: [4, 5], 4: [], 5: []}, {3: "mpiexec"}
    sent = []
    monkeypatch.setattr(
        signal_forwarding, "descendants", lambda pid: [*tree[pid], *(c for k in tree[pid] for c in tree[k])]
    )
    monkeypatch.setattr(signal_forwarding, "name_of", lambda pid: names.get(pid, "python"))
    monkeypatch.setattr(signal_forwarding.os, "kill", lambda pid, number: sent.append((pid, number)))
    assert signal_forwarding._stop_all(1) == [2, 4, 5]
    assert sent == [(pid, signal.SIGSTOP) for pid in (2, 4, 5)]
