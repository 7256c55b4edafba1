"""Tests that fail while the machine stands still run once more, others do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import mpi, processes
from harness.standstill import Clock

INNER = r"""
import os, subprocess, time
from pathlib import Path
import pytest
from harness import standstill

@pytest.fixture(scope="module")
def made():
    with MADE.open("a") as file:
        file.write("x")
    if stop("made"):
        raise RuntimeError("the fixture")
    yield MADE.stat().st_size
    MADE.with_name("taken").touch()

@pytest.fixture(scope="session")
def kept():
    return object()

HERE = Path(__file__).parent
MADE = HERE / "fixture"
SEEN = []

def stop(name):
    "The first time, this process stands still; whether it did."
    if (HERE / name).exists():
        return False
    (HERE / name).touch()
    freeze()
    return True

def freeze():
    me, began = os.getpid(), time.monotonic()
    subprocess.Popen(["sh", "-c", f"kill -STOP {me}; sleep 2.5; kill -CONT {me}"])
    while time.monotonic() < began + 2.4:
        time.sleep(0.01)

@pytest.mark.timeout(1.5)
def test_alarm(tmp_path, kept):
    SEEN.append(tmp_path)
    stop("alarm")
    assert len(set(SEEN)) == 2

def test_fixture(made):
    assert made == 2

def test_another_of_its_module(made):
    assert made == 2 and not (HERE / "taken").exists()

@pytest.mark.timeout(1)
def test_second_has_its_timeout():
    stop("timer")
    time.sleep(5)

def test_fails_again():
    freeze()
    pytest.fail("twice")

def test_fails_without():
    with (HERE / "runs").open("a") as file:
        file.write("x")
    pytest.fail("once")

def test_passes_in_spite_of_it():
    freeze()

@pytest.mark.ranks(2, timeout=5)
def test_ranks(comm, tmp_path):
    import signal
    folder = tmp_path.parent.parent
    if comm.rank == 0 and not (folder / "ranks").exists():
        (folder / "ranks").touch()
        os.kill(PYTEST, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(PYTEST, signal.SIGCONT)
        pytest.fail("stopped")
    assert comm.allreduce(1) == 2
"""
CONFTEST = "from harness import standstill\nstandstill.LATE_S, standstill.TICK_S = 1.0, 0.1\n"


def inner(folder: Path, *args: str) -> tuple[int, str]:
    """Runs a pytest of its own on `INNER`, for which a second is long."""
    (folder / "test_inner.py").write_text(INNER.replace("PYTEST", "int((folder / 'pid').read_text())"))
    (folder / "short.py").write_text(CONFTEST + f"import os, pathlib\npathlib.Path({str(folder)!r}, 'pid')"
                                     ".write_text(str(os.getpid()))\n")  # fmt: skip
    token = folder.name + str(os.getpid())
    env = {**mpi.environment(token), "PSGD_TEST_RANKS": "2"}
    env["PYTHONPATH"] += os.pathsep + os.pathsep.join([str(Path(__file__).parent), str(folder)])
    words = [sys.executable, "-m", "pytest", "-p", "short", "-p", "harness.plugin", "--import-mode=importlib", "-v"]
    words += ["-p", "no:cacheprovider", f"--rootdir={folder}", f"--basetemp={folder / 'base'}"]
    try:
        done = subprocess.run(
            [*words, str(folder / "test_inner.py"), *args],
            env=env, cwd=folder, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    finally:
        processes.kill(token)
    return done.returncode, done.stdout + done.stderr


def test_what_failed_while_the_machine_stood_still_runs_once_more(tmp_path):
    code, out = inner(tmp_path)
    assert code == 1 and "3 failed, 5 passed" in out, out
    _, _, summary = out.partition("the machine stood still")
    repeated = {line.split()[0].partition("::")[2] for line in summary.splitlines() if line.endswith(" once more")}
    assert repeated == {
        *("test_alarm", "test_fixture", "test_second_has_its_timeout", "test_fails_again", "test_ranks[2ranks]")
    }, out
    assert "test_alarm failed while it did, for 2 s, and ran once more" in out or "for 3 s" in out
    failed = {line.split()[1].partition("::")[2] for line in out.splitlines() if line.startswith("FAILED ")}
    assert failed == {"test_second_has_its_timeout", "test_fails_again", "test_fails_without"}
    assert (tmp_path / "runs").read_text() == "x"


def test_what_fails_without_it_says_nothing(tmp_path):
    code, out = inner(tmp_path, "-k", "fails_without or passes")
    assert code == 1 and "1 failed, 1 passed" in out and "the machine stood still" not in out


class Times:
    """What a clock reads."""

    def __init__(self):
        self.now = self.busy = 0.0

    def clock(self):
        return Clock(10.0, lambda: self.now, lambda: self.busy)


@pytest.mark.parametrize(
    ("since", "gap", "computed", "stood"),
    [
        (100.0, 600.0, 5.0, 600.0),
        (400.0, 600.0, 5.0, 300.0),
        (50.0, 600.0, 5.0, 600.0),
        (695.0, 600.0, 5.0, 0.0),  # the test began when it was over, but for a moment
        (100.0, 9.0, 0.0, 0.0),  # a busy machine
        (100.0, 600.0, 590.0, 0.0),  # a call of this process that let no thread go on
    ],
)
@pytest.mark.parametrize("ticked", [True, False])
def test_seconds_are_those_since_a_time(since, gap, computed, stood, ticked):
    times = Times()
    clock = times.clock()
    for times.now in (50.0, 50.5, 100.0):
        clock._last = times.now, 0.0
    times.now, times.busy = 100.0 + gap, computed
    if ticked:
        clock.tick()
        clock.tick()
    assert clock.stood_s(since) == stood


def test_each_standstill_counts():
    times = Times()
    clock = times.clock()
    for times.now in (0.5, 20.5, 21.0, 21.5, 60.0):
        clock.tick()
    assert clock.stood_s(0.0) == 20.0 + 38.5
    times.now = 60.5
    assert clock.stood_s(20.5) == 38.5 and clock.stood_s(60.1) == 0.0


def test_a_thread_ticks_until_it_is_stopped():
    clock = Clock()
    first = clock._last
    clock.start()
    clock._stopped.wait(2.0)
    assert clock._last > first
    clock.stop()
