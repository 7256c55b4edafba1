"""The harness itself: ranks are real, failures are seen and named, time-outs fail and harm nobody after."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness import mpi, plugin, processes

TESTS = Path(__file__).parent
RANK_CODE = "import sys, time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"


@pytest.mark.ranks(1, 3, 5)
@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_body_runs_on_all_ranks(comm, dtype, tmp_path):
    send = np.array([comm.rank + 1], dtype)
    total = np.zeros_like(send)
    comm.Allreduce(send, total)
    assert total[0] == comm.size * (comm.size + 1) // 2
    (tmp_path / str(comm.rank)).write_text("")
    comm.Barrier()
    assert len(list(tmp_path.iterdir())) == comm.size
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.ranks(2)
def test_errors_of_mpi_are_exceptions(comm):
    with pytest.raises(Exception, match=r"MPI_ERR|nvalid"):
        comm.Send(bytearray(1), dest=99)


@pytest.mark.ranks(2)
def test_skip_reaches_the_report(comm):
    pytest.skip("asked for on the ranks")


@pytest.mark.xfail(strict=True, reason="a failure on one rank fails the test")
@pytest.mark.ranks(3)
def test_one_rank_is_enough_to_fail(comm):
    assert comm.rank != 1


INNER = r"""
import os, signal, sys, time, warnings
import pytest

@pytest.mark.ranks(3)
def test_fails(comm):
    print(f"said by {comm.rank}\n", end="", flush=True)
    value = comm.rank
    assert value == 0

@pytest.mark.ranks(3, timeout=1)
def test_hangs(comm):
    if comm.rank != 2:
        stuck_here(comm)

def stuck_here(comm):
    comm.Barrier()

@pytest.mark.ranks(2, timeout=1)
def test_holds_the_interpreter(comm):
    import ctypes
    ctypes.PyDLL(None).sleep(30)

@pytest.mark.ranks(2)
def test_dies(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.ranks(2)
def test_leaves_a_message(comm):
    if comm.rank == 0:
        comm.Send(bytearray(1), dest=1, tag=7)

@pytest.mark.ranks(2)
def test_warns(comm):
    warnings.warn("careful")

@pytest.mark.ranks(2)
def test_half_skips(comm):
    if comm.rank == 0:
        pytest.skip("not me")

@pytest.mark.ranks(1)
@pytest.mark.parametrize("value", [object()])
def test_not_json(comm, value):
    pass

@pytest.mark.ranks(6)
def test_works_after_all_that(comm):
    assert comm.allreduce(1) == 6
"""


def inner(folder, code, *args):
    """Starts a pytest of its own on `code`, whose processes carry the returned token."""
    (folder / "test_inner.py").write_text(code)
    token = folder.name + str(os.getpid())
    env = {**mpi.environment(token), "PSGD_TEST_RANKS": "3"}
    env["PYTHONPATH"] += os.pathsep + str(TESTS)
    words = [sys.executable, "-m", "pytest", "-p", "harness.plugin", "--import-mode=importlib", "-v"]
    words += ["-p", "no:cacheprovider", f"--rootdir={folder}", str(folder / "test_inner.py"), *args]
    started = subprocess.Popen(
        words,
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- it takes no lock
    )
    return token, started


def test_failures_are_named_and_the_next_test_works(tmp_path):
    token, started = inner(tmp_path, INNER)
    with started:
        try:
            out, _ = started.communicate(timeout=90)
        finally:
            started.kill()
            left = processes.wait_gone(token, 10.0)
            processes.kill(token)
    assert left == []
    assert started.returncode == 1
    for name in re.findall(r"def (test_\w+)", INNER):
        expected = "PASSED" if name == "test_works_after_all_that" else "FAILED"
        assert re.search(rf"::{name}\[\S+ {expected}", out), out
    assert "--- ranks 1, 2 of 3 ---" not in out  # they fail with different values:
    assert "assert 1 == 0" in out
    assert "assert 2 == 0" in out
    assert "said by 1" in out
    assert "--- ranks 0, 1 of 3 had not come back after 1 s ---" in out
    assert "in stuck_here" in out
    assert "--- rank 1 of 2 ---\nthis rank died" in out
    assert "left a message from rank 0 with tag 7 unreceived" in out
    assert "UserWarning: careful" in out
    assert "only rank 0 of 2 skipped: not me" in out
    assert "argument 'value' of a `ranks` test must be JSON or tmp_path, got object" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_pytest(tmp_path, number):
    code = """
import pytest
@pytest.mark.ranks(3)
def test_stuck(comm, tmp_path):
    (tmp_path / str(comm.rank)).write_text("")
    if comm.rank:
        comm.Barrier()
    while comm.rank == 0:
        pass
"""
    token, started = inner(tmp_path, code, f"--basetemp={tmp_path / 'base'}")
    with started:
        try:
            deadline = time.monotonic() + 30
            while len(list(tmp_path.glob("base/*/[012]"))) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            pool = [pid for pid in _descendants(started.pid) if pid != started.pid]
            assert len(pool) >= 4
            started.send_signal(number)
            started.communicate(timeout=20)
            deadline = time.monotonic() + 10
            while any(Path(f"/proc/{pid}/exe").exists() for pid in pool):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            started.kill()
            processes.kill(token)


def _descendants(root):
    """Process ids below root, and root."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def test_job_runs_ranks_and_reports(job):
    result = job(2, RANK_CODE + "sys.stdout.write(f'rank {comm.rank} of {comm.size}\\n')", check=True)
    assert sorted(result.stdout.split("\n")) == ["", "rank 0 of 2", "rank 1 of 2"]
    assert 0 < result.seconds < 20


def test_job_that_hangs_fails_and_is_gone(job):
    with pytest.raises(pytest.fail.Exception, match="not done after 3 s, killed"):
        job(2, RANK_CODE + "time.sleep(60)", timeout=3)
    running = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(job.folder) in _text(p)]
    assert running == []


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_job_that_leaves_a_process_behind_fails(job):
    code = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    with pytest.raises(pytest.fail.Exception, match=r"left behind:\n.*sleep 60"):
        job(None, code)


def test_job_checks_the_exit_code_when_asked(job):
    assert job(None, "raise SystemExit(5)").returncode == 5
    with pytest.raises(pytest.fail.Exception, match="exit code 5"):
        job(None, "raise SystemExit(5)", check=True)


def test_what_needs_a_gpu_is_skipped_without_cupy_before_ranks_load_anything(monkeypatch, request):
    monkeypatch.setattr(plugin.importlib.util, "find_spec", lambda name: None if name == "cupy" else name)
    plugin.pytest_runtest_setup(request.node)  # which needs none
    request.node.add_marker(pytest.mark.gpu)
    with pytest.raises(pytest.skip.Exception, match="no CuPy"):
        plugin.pytest_runtest_setup(request.node)
