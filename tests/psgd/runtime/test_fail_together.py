"""One rank fails and the whole job ends: soon, told once, exit code not 0, nothing left behind."""

import re
import subprocess
import sys

import pytest
from harness import mpi

pytestmark = pytest.mark.job

JOB = r"""
import os, signal, sys, threading, time
from mpi4py import MPI
import psgd
from psgd.runtime.fail_together import guard
from psgd.kernels.errors import UsageError
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
peer = (WHO + 1) % size if rank != (WHO + 1) % size else (WHO + 2) % size

def fail():
    time.sleep(0.2)
    FAIL

with guard(comm):
    if rank == WHO:
        fail()
    WAIT
sys.stdout.write(f"left the guard {rank}\n")
AFTER
"""
LIBRARY = JOB.replace("with guard(comm):", "psgd.abort_on_exception()\nif True:")

WAITS = {
    "barrier": "comm.Barrier()",
    "recv": "comm.Recv(bytearray(1), source=WHO)",
    "peer": "comm.Recv(bytearray(1), source=peer)",  # waits for one that lives and will never send
    "test": "r = comm.Irecv(bytearray(1), source=WHO)\n    while not r.Test(): time.sleep(0.01)",
    "python": "while True: time.sleep(0.01)",
    "end": "time.sleep(1.5)",
}


def run(job, fail, wait, who=1, ulfm=False, after="", code=JOB, limit=10.0):
    """Runs the job; ends within `limit` seconds of its start, processes included, or the test fails."""
    for name, text in (("FAIL", fail), ("WAIT", WAITS[wait]), ("AFTER", after), ("WHO", str(who))):
        code = code.replace(name, text)
    result = job(3, code, ulfm=ulfm, timeout=20)
    assert result.seconds < limit
    return result


def told(result):
    """Lines by which ranks tell of an end, ours only."""
    return [line for line in result.stderr.splitlines() if line.startswith("psgd:")]


@pytest.mark.parametrize(
    ("wait", "who", "ulfm"),
    [
        ("barrier", 0, False),
        ("test", 2, False),
        ("python", 1, False),
        ("barrier", 1, True),
        ("peer", 0, True),
        ("python", 2, True),
    ],
)
@pytest.mark.both_mpis_whole
def test_exception_ends_the_job(job, wait, who, ulfm):
    result = run(job, 'raise ValueError(f"boom {rank}")', wait, who, ulfm)
    assert result.returncode == 1
    assert result.stderr.count("Traceback (most recent call last)") == 1
    assert result.stderr.count(f"ValueError: boom {who}") == 1
    assert "in fail" in result.stderr
    assert "ending.py" not in result.stderr
    own = [line for line in told(result) if line.startswith(f"psgd: [{who}/3]")]
    assert len(own) == 1
    assert "left the guard" not in result.stdout


@pytest.mark.parametrize(
    ("fail", "code", "line", "wait", "ulfm"),
    [
        ("sys.exit(3)", 3, r"psgd: \[1/3\] \S+: sys.exit\(3\) in fail, .*:\d+", "recv", False),
        ("sys.exit(3)", 3, r"psgd: \[1/3\] \S+: sys.exit\(3\) in fail, .*:\d+", "python", True),
        ("sys.exit('no disk')", 1, r"psgd: \[1/3\] \S+: no disk", "test", True),
        ("sys.exit(256)", 1, r"psgd: \[1/3\] \S+: sys.exit\(256\) in fail, .*", "barrier", False),
        ("raise UsageError('data: empty')", 2, r"psgd: error: data: empty \(\[1/3\] \S+\)", "peer", False),
        ("raise KeyboardInterrupt", 130, r"psgd: \[1/3\] \S+: interrupted in fail, .*:\d+", "barrier", False),
    ],
)
@pytest.mark.both_mpis_whole
def test_exit_ends_the_job_with_its_code_and_one_line(job, fail, code, line, wait, ulfm):
    result = run(job, fail, wait, ulfm=ulfm)
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert len([said for said in told(result) if re.fullmatch(line, said)]) == 1


@pytest.mark.parametrize(
    ("wait", "who", "ulfm"),
    [("barrier", 1, False), ("barrier", 0, True), ("peer", 1, True), ("python", 0, True)],
)
def test_killed_rank_ends_the_job(job, wait, who, ulfm):
    result = run(job, "os.kill(os.getpid(), signal.SIGKILL)", wait, who, ulfm)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    if ulfm:  # without, the launcher tells
        assert 1 <= len(told(result)) <= 2
        assert all(f"(dead: rank {who})" in line for line in told(result))


def test_exception_in_a_thread_ends_the_job(job):
    fail = "threading.Thread(target=lambda: 1 / 0).start(); comm.Recv(bytearray(1), source=0)"
    result = run(job, fail, "barrier")
    assert result.returncode == 1
    assert result.stderr.count("ZeroDivisionError") == 1


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_reaches_a_rank_in_a_blocking_call(job, name, code):
    """SIGHUP too, which UCX has a handler for."""
    fail = f"threading.Timer(0.3, os.kill, (os.getpid(), signal.{name})).start(); comm.Barrier()"
    result = run(job, fail, "python")
    assert result.returncode == code
    assert len(told(result)) == 1
    assert f"{name} in a blocking call" in told(result)[0]


def test_the_advice_comes_once_and_only_after_a_signal(job):
    code = (
        "import os, signal, sys; from mpi4py import MPI; from psgd.runtime.fail_together import guard\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with guard(MPI.COMM_WORLD, lambda: 'how to go on'):\n"
        "    if sys.argv[1] == 'signal': os.kill(os.getpid(), signal.SIGINT)\n"
        "    raise ValueError('a fault')"
    )
    for mode, count in (("signal", 1), ("fault", 0)):
        result = job(None, [sys.executable, "-c", code, mode])
        assert result.stderr.count("psgd: how to go on\n") == count, result.stderr
        assert result.returncode == (130 if count else 1)


def test_terminated_child_process_ends_nobody(job):
    # As data loaders do: a forked process is sent SIGTERM by its parent.
    fail = "p = os.fork() or time.sleep(9); time.sleep(0.2); os.kill(p, 15); assert os.waitpid(p, 0)[1] == 15"
    result = run(job, fail, "end")
    assert result.returncode == 0, result.stderr


def test_long_output_is_not_lost(job):
    result = run(job, "print('x' * 200_000); raise ValueError('y' * 200_000 + 'END')", "barrier")
    assert result.stdout.count("x") == 200_000
    assert result.stderr.count("y" * 200_000 + "END\n") == 1


@pytest.mark.parametrize("ulfm", [False, True])
def test_leaving_normally_ends_nobody_and_finalizes(job, ulfm):
    # sys.exit(0) on one rank, the end of the block on the others; handlers are as before.
    after = "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and threading.active_count() == 1"
    result = run(job, "sys.exit(0)", "end", ulfm=ulfm, after=after)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n")) == ["", "left the guard 0", "left the guard 2"]
    assert result.stderr == ""


@pytest.mark.parametrize(("wait", "ulfm"), [("barrier", False), ("python", True)])
def test_library_form_ends_the_job(job, wait, ulfm):
    result = run(job, 'raise ValueError("boom")', wait, ulfm=ulfm, code=LIBRARY)
    assert result.returncode == 1
    assert result.stderr.count("ValueError: boom") == 1


def test_without_asking_nothing_is_hooked():
    code = """
import signal, sys, threading
import psgd, psgd.runtime.fail_together, psgd.kernels
psgd.abort_on_exception
assert sys.excepthook is sys.__excepthook__
assert threading.excepthook is threading.__excepthook__
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
assert threading.active_count() == 1
assert not {"mpi4py", "numba", "cupy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], env=mpi.environment("none"), check=True, timeout=20)


def test_an_argument_that_all_ranks_refuse_is_told_once(job):
    code = (
        "import numpy as np, psgd; from mpi4py import MPI; psgd.abort_on_exception()\n"
        "psgd.connect(MPI.COMM_WORLD, np.zeros(3), OPTIONS).__enter__()"
    )
    for wrong in ("strategy='synk'", "servers=0", "optimizer='adam'"):
        result = job(3, [sys.executable, "-c", code.replace("OPTIONS", wrong)])
        assert result.returncode == 2, result.stderr
        assert result.stderr.count("Traceback") == result.stderr.count("UsageError: ") == 1, result.stderr
        assert "[0/3] Traceback" in result.stderr  # with the line of the program


def test_library_form_without_mpi_is_the_usual_traceback():
    code = "import psgd; psgd.abort_on_exception(); raise ValueError('boom')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=mpi.environment("none"),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.count("ValueError: boom") == 1
    assert "psgd: [" not in done.stderr
