"""Hosts made up on one machine end without a trace, whatever ends them."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from harness import hosts as harness_hosts
from harness import mpi
from harness.processes import holding

COMMAND = [sys.executable, str(Path(harness_hosts.__file__))]


@pytest.fixture
def usable(hosts):
    """Skips what makes hosts without the fixture's help."""
    hosts(1)


def inside(spaces):
    """Processes in one of these network namespaces, the parent of a host's process 1 apart."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(bytes(1))
            if os.readlink(folder / "ns" / "net") in spaces and words[0] not in (b"unshare", b"nsenter"):
                found.append(folder.name)
    return found


def wait_until_none(*marks):
    deadline = time.monotonic() + 10
    while (left := holding(*marks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_nothing_stays(usable):
    cluster = harness_hosts.Cluster(2)
    with cluster:
        folder = cluster.folder
        table = f"{folder}/hosts"
        assert len(holding(table)) == 2  # what keeps the hosts
        spaces = {os.readlink(f"/proc/{machine.pid}/ns/net") for machine in cluster._machines}
        assert len(inside(spaces)) == 3
        # What a job leaves running on a host ends with the host.
        words = [str(cluster.agent), "-x", "host1", "sleep", "1000"]
        stray = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while len(inside(spaces)) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert stray.poll() is None
    assert stray.wait(timeout=5) != 0
    assert inside(spaces) == []
    assert holding(table) == []
    assert not folder.exists()


def test_hosts_are_gone_after_a_failure(usable):
    cluster = harness_hosts.Cluster(1)
    with contextlib.suppress(ZeroDivisionError), cluster:
        raise ZeroDivisionError
    assert holding(f"{cluster.folder}/hosts") == []
    assert not cluster.folder.exists()


@pytest.mark.one_mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_after_a_signal(usable, tmp_path, number):
    script = tmp_path / "hang.py"
    script.write_text(
        "import pathlib, sys, time\nfrom mpi4py import MPI\n"
        "pathlib.Path(sys.argv[1], f'here{MPI.COMM_WORLD.rank}').touch()\ntime.sleep(1000)"
    )
    words = [*COMMAND, "--hosts", "2", "--", sys.executable, str(script), str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            words, env=mpi.environment("unused"), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("here?"))) < 2 and time.monotonic() < deadline and started.poll() is None:
        time.sleep(0.05)
    started.send_signal(number)
    assert started.wait(timeout=20) == (143 if number == signal.SIGTERM else -9), (tmp_path / "log").read_text()
    assert len(list(tmp_path.glob("here?"))) == 2, (tmp_path / "log").read_text()
    marks = str(script), f"psgd-hosts-{started.pid}-"
    assert wait_until_none(*marks) == []
    for folder in Path(tempfile.gettempdir()).glob(f"psgd-hosts-{started.pid}-*"):
        assert number == signal.SIGKILL  # nobody is there to remove it
        shutil.rmtree(folder)
