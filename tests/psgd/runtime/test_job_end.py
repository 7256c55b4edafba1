"""How a rank ends its job: the exit code, the message, and where it goes; whose failure it was."""

import subprocess
import sys

import pytest
from harness import mpi

from psgd.kernels.errors import PeerLostError
from psgd.runtime import job_end

ALONE = """
import os
from mpi4py import MPI
from psgd.runtime import job_end

{before}
job_end.JobRank(MPI.COMM_WORLD).end("what happened\\nand where", {code})
"""


def run(code: int, before: str = ""):
    return subprocess.run(
        [sys.executable, "-c", ALONE.format(code=code, before=before)],
        env=mpi.environment("none", {"OMPI_MCA_btl": "^ofi"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.job
@pytest.mark.parametrize(("code", "seen"), [(3, 3), (256, 1), (0, 1)])
def test_the_exit_code_is_never_0(code, seen):
    done = run(code)
    assert done.returncode == seen
    assert done.stderr.startswith("what happened\nand where\n")


@pytest.mark.job
def test_the_message_goes_to_another_descriptor_too(tmp_path):
    file = tmp_path / "last"
    done = run(1, f"job_end.tell(os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT))")
    assert file.read_text() == "what happened\nand where\n"
    assert done.stderr.startswith("what happened\nand where\n")


@pytest.mark.job
def test_a_descriptor_that_is_full_or_closed_costs_no_other(tmp_path):
    """As stderr that is a file on a full disk."""
    file = tmp_path / "last"
    for spoil in ("os.dup2(os.open('/dev/full', os.O_WRONLY), 2)", "os.close(2)"):
        run(1, f"job_end.tell(os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)); {spoil}")
        assert file.read_text() == "what happened\nand where\n"


@pytest.mark.job
def test_a_process_alone_says_nothing_else():
    assert run(3).stderr == "what happened\nand where\n"


def test_failures_that_follow_from_others_are_told_apart():
    lost = PeerLostError("rank 2 closed its side")
    following = RuntimeError("cleanup")
    following.__context__ = lost
    assert job_end.secondary(lost) == "rank 2 closed its side"
    assert job_end.secondary(following) == "rank 2 closed its side"
    assert job_end.secondary(ValueError("mine")) is None


LAST = r"""
import os, signal
from mpi4py import MPI
from psgd.runtime.job_end import JobRank

comm = MPI.COMM_WORLD
if comm.rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
rank = JobRank(comm)
assert not rank.alone() or comm.Get_failed().Get_size()
while not rank.alone():
    MPI.COMM_SELF.Iprobe()  # progress
rank.end("the last one", 3)
"""


@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_of_the_last_that_lives_the_launcher_gets_the_code(job):
    done = job(2, LAST, ulfm=True)
    assert done.returncode == 3 and "the last one" in done.stderr
