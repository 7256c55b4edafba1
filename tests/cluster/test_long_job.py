"""The long job: preempted it goes on where it was, cancelled it ends, and it does not go on for ever."""

import time

import pytest
from harness import mpi

# A shell in place of the ranks: makes a checkpoint where MAKES is set, and says that steps are left.
STAND_IN = """#!/bin/sh
[ -z "$MAKES" ] || mkdir -p "$MAKES/step-00000000$(cat turns | wc -l)"
echo turn >>turns
exit 85
"""


@pytest.fixture
def stand_in(login):
    """A long job whose ranks are no training at all; returns its job once it has ended."""

    def run(makes, **lines):
        program = login.folder / "bin" / "psgd"
        program.parent.mkdir()
        (program.parent / "activate").write_text(f"PATH={program.parent}:$PATH\n")
        program.write_text(STAND_IN)
        program.chmod(0o755)
        (login.folder / "turns").touch()
        folder = login.folder / "made"
        path = login.edit(
            "long_job", "", ntasks="1", VENV=str(login.folder), MPI="none", CHECKPOINTS=str(folder), **lines
        )
        number = login.sbatch(path, env={"MAKES": str(folder) if makes else ""})
        deadline = time.monotonic() + 30
        while (job := login.cluster.job(number))["JobState"] not in ("FAILED", "COMPLETED", "CANCELLED"):
            assert time.monotonic() < deadline, job
            login.cluster.start_now(number)
            time.sleep(0.1)
        return job, login.cluster.log(job), (login.folder / "turns").read_text().count("turn")

    return run


def test_it_comes_back_as_often_as_it_may(login, stand_in):
    (login.folder / "made" / "step-000009000.damaged-1").mkdir(parents=True)  # no checkpoint, whatever it ends with
    job, said, turns = stand_in(True, MAX_RESTARTS="1")
    assert (job["JobState"], job["ExitCode"], turns) == ("FAILED", "1:0", 2)
    assert said.count("requeued to resume from") == 1
    assert "already requeued 1 times: not requeued again" in said


def test_without_a_step_forward_it_does_not_come_back(stand_in):
    job, said, turns = stand_in(False, MAX_RESTARTS="9")
    assert (job["JobState"], job["ExitCode"], turns) == ("FAILED", "1:0", 1)
    assert "no progress since the start: not requeued" in said


def test_preempted_it_comes_back_and_cancelled_it_does_not(login, with_mpich):
    options = "--dataset digits --model softmax --epochs 1000 --inject compute:0.02 --checkpoint-every 10"
    node = ["--nodelist=host1", "--gpus-per-node=4"]
    number = login.sbatch("--partition=cheap", *node, login.edit("long_job", options, ntasks="2"))
    folder = login.folder / f"checkpoints-{number}"
    login.wait_for(lambda: any(folder.glob("step-*[0-9]")), number)
    urgent = login.sbatch(*node, "--wrap=true")
    login.wait_for(lambda: login.cluster.job(number)["Restarts"] == "1", number)
    newest = max(folder.glob("step-*[0-9]"))
    login.psgd("checkpoint", "verify", str(newest))
    assert f"requeued to resume from {newest}" in login.cluster.log(login.cluster.job(number))
    login.done(urgent)

    login.next_turn(number, 1)
    assert f"resuming from {newest}" in login.cluster.log(login.cluster.job(number))
    assert len(login.ranks(number)) == 2
    login.cluster.run("scancel", number)
    login.wait_for(lambda: not login.ranks(number), number)
    job = login.cluster.wait(number)
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "1")
    login.psgd("checkpoint", "verify", str(folder))


def test_done_without_a_server_that_died_it_does_not_come_back(login):
    if not mpi.is_open_mpi():
        pytest.skip("runs survive dead ranks with Open MPI")
    words = "--servers 2 --replicas 1 --workers 2 --epochs 4 --inject kill:s1@20,compute:0.01 --checkpoint-every 16"
    text = login.psgd(
        *("slurm", "render", "long_job", "--launcher=mpirun", "--nodes=2", f"--venv={login.venv}", "--"),
        *("--dataset=digits", *words.split()),
    ).stdout
    path = login.folder / "survives.sbatch"
    path.write_text(text)
    job = login.cluster.wait(login.sbatch(str(path)), timeout_s=90)
    said = login.cluster.log(job)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "4:0", "0"), said
    assert "lost ranks" in said and "requeued" not in said
