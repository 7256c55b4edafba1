"""Signals for ranks go to whom is ready for them, once, and not to their children."""

import os
import signal
import subprocess
import sys
import time

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
