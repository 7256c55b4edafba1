import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from psgd.runtime.launcher_env import AloneError, expected_ranks, node_name, place, place_here, rank_of, started_here

TASK = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # the shell of salloc
        TASK,  # a batch script's body
        {**TASK, "SLURM_STEP_ID": "4294967291"},  # the same, where the batch step is numbered
        {**TASK, "SLURM_STEP_ID": "batch"},
        {**TASK, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},  # salloc's interactive step
        {**TASK, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun -n 1 --pty bash within -n 4
    ],
)
def test_shells_and_scripts_are_no_ranks(variables):
    assert place(variables) is None


def test_the_shell_of_srun_pty_is_no_rank(monkeypatch):
    """Also with -n 4, and where the MPI plugin has set its variables; what runs below it without a terminal is."""
    step = {**TASK, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PTY_PORT": "4711", "SLURM_TASK_PID": "99"}
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 0)
    monkeypatch.setattr(os, "getpgid", lambda process: {99: 99}[process])
    monkeypatch.setattr(os, "getpgrp", lambda: 104)  # a job of the shell's
    assert place(step) is None
    assert place({**step, "PMIX_RANK": "0"}) is None
    assert place({**step, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}) == (1, 3)  # mpirun gives terminals
    monkeypatch.setattr(os, "getpgrp", lambda: 99)  # srun --pty psgd train
    assert place(step) == (0, 4)
    monkeypatch.setattr(os, "getpgrp", lambda: 104)
    monkeypatch.setattr(os, "isatty", lambda descriptor: False)
    assert place({**step, "SLURM_PROCID": "2"}) == (2, 4)


def test_expected_ranks(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "8")
    assert expected_ranks() == 8
    monkeypatch.setenv("PSGD_ALONE", "1")
    assert expected_ranks() == 0
    monkeypatch.delenv("PSGD_ALONE")
    monkeypatch.delenv("PMI_SIZE")
    assert expected_ranks() == 0


@pytest.mark.parametrize(("vendor", "fix"), [("Open MPI", "srun --mpi=pmix"), ("MPICH", "srun --mpi=pmi2")])
def test_the_mend_is_named(vendor, fix):
    error = AloneError(4, (vendor, (5, 0, 1)))
    assert fix in error.fix
    assert error.fix in str(error)
    assert "says 4 ranks" in error.cause
    assert f"{vendor} 5.0.1" in error.cause


def test_a_node_has_one_name():
    assert node_name() == node_name()
    assert os.uname().nodename in node_name()


SINGLETON = """
import numpy as np, psgd
from mpi4py import MPI
with psgd.connect(MPI.COMM_WORLD, np.zeros(3)) as ps:
    ps.step()
print("trained alone")
"""


@pytest.mark.job
def test_a_program_of_singletons_is_refused(job):
    """As under `srun --mpi=none`: each process is MPI's only one, and SLURM tells of four."""
    task = {**TASK, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
    result = job(None, SINGLETON, env=task)
    assert result.returncode != 0
    assert "trained alone" not in result.stdout
    assert "the environment says 4 ranks, but each would train alone" in result.stderr
    meant = job(None, SINGLETON, env={**task, "PSGD_ALONE": "1"})
    assert (meant.returncode, meant.stdout) == (0, "trained alone\n"), meant.stderr


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [({}, 0), ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, 8), ({"MPI_LOCALNRANKS": "3"}, 3), ({"MPI_LOCALNRANKS": "x"}, 0)],
)
def test_ranks_started_here(monkeypatch, environment, ranks):
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert started_here() == ranks


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (1, 4)),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, (0, 2)),
        ({"SLURM_LOCALID": "2", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, (2, 3)),
        ({"SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, (2, 4)),
        ({"SLURM_LOCALID": "0", "SLURM_NODEID": "3", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, None),
        ({"SLURM_LOCALID": "0"}, None),
    ],
)
def test_ranks_of_a_node(variables, expected):
    assert place_here(variables) == expected


def test_a_process_is_the_rank_that_its_variables_say_and_a_launcher_is_none(tmp_path):
    variables = {"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
    launcher = tmp_path / "prterun"
    launcher.symlink_to(shutil.which("sleep"))
    for words, rank in ((["sleep", "60"], 2), ([launcher, "60"], None)):
        with subprocess.Popen(words, env=variables) as process:
            try:
                while not Path(f"/proc/{process.pid}/environ").read_bytes():  # its memory is still being set up
                    time.sleep(0.01)
                assert rank_of(process.pid) == rank
            finally:
                process.kill()
    assert rank_of(process.pid) is None  # gone
