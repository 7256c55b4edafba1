"""Signals to the launcher: to end, to stop and to continue the job; those that are ignored stay so."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from harness import mpi
from harness.mpi import environment

from psgd.launch import supervise
from psgd.launch.signal_forwarding import descendants
from psgd.launch.supervise import FirstEnded

RUN = """
import os, signal, sys
from psgd.launch import supervise
from psgd.launch.signal_forwarding import Forwarding
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP]
for number in numbers:
    signal.signal(number, signal.SIG_IGN if "ignored" in sys.argv else signal.SIG_DFL)
sent = "; sleep 0.1; ".join(f"kill -{number:d} $PPID" for number in numbers[: int(sys.argv[1])])
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


RANKS = "for rank in 0 1 2; do PMI_RANK=$rank PMI_SIZE=3 sleep 60 & echo $!; done; echo; wait"


def test_it_is_the_one_that_was_killed():
    with subprocess.Popen(["/bin/sh", "-c", RANKS], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(3)]
        first = FirstEnded(3)
        limit = time.monotonic() + 20
        while len(first._files) < 3 and time.monotonic() < limit:
            first.look(parent.pid)
        assert first.ranks == []
        os.kill(pids[1], signal.SIGKILL)
        while not first.ranks and time.monotonic() < limit:
            time.sleep(0.01)
        for pid in (pids[0], pids[2]):
            os.kill(pid, signal.SIGKILL)
        assert first.ranks == [1]
        first.look(parent.pid)


@pytest.mark.job
@pytest.mark.skipif(mpi.is_open_mpi(), reason="Open MPI goes on, or names the rank itself")
@pytest.mark.parametrize("strategy", ["async", "allreduce"])
def test_without_ulfm_the_job_ends_within_10_s_and_names_the_rank(strategy, psgd_command, tmp_path):
    log = tmp_path / "log"
    words = ["--strategy", strategy, "--workers", "3", "--inject", "kill:1@60,compute:0.01", "--log", str(log)]
    done = psgd_command("train", *words, timeout=90)
    ended = time.time()
    assert done.returncode not in (0, 1, 2, 3, 4, 85)
    rank = 1 if strategy == "allreduce" else 2
    assert f"psgd: error: rank {rank} was the first to end, and ended the job" in done.stderr, done.stderr
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert "progress" in events and "end" not in events and ended - log.stat().st_mtime < 10


@pytest.mark.parametrize("dies", ["seen", "unseen"])
def test_a_rank_that_dies_before_the_run_has_begun_ends_it(dies):
    """Its launcher is a stand-in: a shell with three ranks, of which one ends, or was never there."""
    ranks = [
        f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=3 sleep 60 &" for rank in range(3 if dies == "seen" else 2)
    ]
    job = subprocess.Popen(["sh", "-c", " ".join([*ranks, "wait"])], env=environment("none"))
    watch = supervise.StartWatch(3, lambda: False, patience_s=0.3)
    try:
        limit = time.monotonic() + 20
        while len(watch._seen) < len(ranks) and time.monotonic() < limit:
            watch.look(job.pid)
            time.sleep(0.01)
        if dies == "seen":
            os.kill(watch._seen[1], signal.SIGKILL)
        while not watch.ranks and time.monotonic() < limit:
            watch.look(job.pid)
            time.sleep(0.01)
        assert watch.ranks == [1 if dies == "seen" else 2]
        assert job.wait(timeout=10) == -signal.SIGTERM
    finally:
        for pid in watch._seen.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_run_that_has_begun_is_left_alone():
    begun = []
    watch = supervise.StartWatch(1, lambda: bool(begun), patience_s=0)
    begun.append(True)
    watch.look(os.getpid())  # would be ended
    assert watch.ranks == []


def test_time_in_which_all_were_stopped_is_none_for_a_rank_to_come(monkeypatch):
    clock, killed = [100.0], []
    monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(supervise, "descendants", lambda pid: [7])
    monkeypatch.setattr(supervise, "rank_of", lambda pid: 0)
    monkeypatch.setattr(supervise.os, "kill", lambda pid, number: killed.append(pid))
    watch = supervise.StartWatch(2, lambda: False, patience_s=3)
    for passed in (0.0, 1.0, 500.0, 1.0, 0.5):
        clock[0] += passed
        watch.look(5)
    assert watch.ranks == []
    for passed in (1.0, 0.2):
        clock[0] += passed
        watch.look(5)
    assert watch.ranks == [1] and killed == [5]
