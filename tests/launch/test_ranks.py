"""Who is a rank: by the launcher's variables, and only where this process is the one they are for."""

import os
import socket
import sys

import pytest

from psgd.launch import ranks
from psgd.runtime.launcher_env import FROM_A_LAUNCHER


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5", "PMIX_RANK": "2"}, (2, 5)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4)),
        ({"PMIX_RANK": "3"}, (3, None)),
        ({"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
        ({"PMI_RANK": "", "OMPI_COMM_WORLD_RANK": "x"}, None),
        ({"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, (1, 4)),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "8"},
            (1, 2),
        ),
        # A batch script itself has no step; the shell of `srun --pty` is a step of one task.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, None),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}, None),
        # In an allocation of 4 tasks, a step of one.
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"}, None),
    ],
)
def test_place(variables, place):
    assert ranks.place(variables) == place


def test_rank_0_speaks(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_RANK", "0")
    assert ranks.speaks()
    monkeypatch.setenv("PMI_RANK", "1")
    assert not ranks.speaks()


@pytest.fixture
def told(monkeypatch):
    """Variables of a rank, and no launcher above, in the namespace in which none could hide."""
    for name in list(os.environ):
        if name.startswith(FROM_A_LAUNCHER):
            monkeypatch.delenv(name)
    monkeypatch.setattr(ranks, "ancestors", lambda: iter([(7, "bash")]))
    monkeypatch.setattr(ranks, "sees_all_processes", lambda: True)

    def told(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        ranks.leave()
        return ranks.place() is not None

    return told


def test_a_launcher_above_makes_a_rank(told, monkeypatch):
    monkeypatch.setattr(ranks, "ancestors", lambda: iter([(7, "bash"), (6, "prterun")]))
    assert told(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    monkeypatch.setattr(ranks, "ancestors", lambda: iter([(7, "bash"), (6, "slurmstepd")]))
    assert not told(), "a batch script that was submitted from a rank"


def test_a_rank_above_makes_none(told, monkeypatch):
    monkeypatch.setattr(ranks, "ancestors", lambda: iter([(7, "python"), (6, "prterun")]))
    monkeypatch.setattr(ranks, "_is_that_rank", lambda pid: pid == 7)
    monkeypatch.setenv("PSGD_OUTCOME", "/nowhere")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    assert not told(OMPI_COMM_WORLD_RANK="1", PMIX_RANK="1", SLURM_PROCID="1")
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "PSGD_OUTCOME"} & set(os.environ)
    assert {"SLURM_CONF", "OMPI_MCA_pml"} <= set(os.environ), "settings stay"


def test_a_channel_of_its_own_makes_a_rank(told):
    """As in a container, where the launcher does not show."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"prterun-host-4711@0.0;tcp4://127.0.0.1:{server.getsockname()[1]}"
        assert told(PMIX_RANK="1", PMIX_SERVER_URI2=uri)
    assert not told(PMIX_RANK="1", PMIX_SERVER_URI2=uri)
    ours, theirs = socket.socketpair()
    assert told(PMI_RANK="1", PMI_FD=str(ours.fileno()))
    for each in (ours, theirs):
        each.close()
    assert not told(PMI_RANK="1", PMI_FD="999")


def test_where_a_launcher_may_hide_slurms_variables_count(told, monkeypatch):
    task = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}
    monkeypatch.setattr(ranks, "sees_all_processes", lambda: False)
    assert told(**task)
    monkeypatch.setattr(ranks, "sees_all_processes", lambda: True)
    assert not told(**task)


FROM_A_RANK = """
import subprocess, sys
from mpi4py import MPI
words = [sys.executable, "-m", "psgd.launch", "train", "--json", "--epochs", "1", "--hidden", "4", *sys.argv[1:]]
done = subprocess.run(words, capture_output=True, text=True)
print(done.returncode, done.stdout.count("test_accuracy"), done.stderr if done.returncode else "")
"""


@pytest.mark.job
@pytest.mark.parametrize("arguments", [(), ("--servers", "0", "--workers", "1")])
def test_a_rank_may_start_a_run(job, tmp_path, arguments):
    """It starts ranks of its own; one process alone is no rank of the outer job either."""
    script = tmp_path / "rank.py"
    script.write_text(FROM_A_RANK)
    result = job(2, [sys.executable, str(script), *arguments], timeout=60, check=True)
    assert sorted(result.stdout.split()) == ["0", "0", "1", "1"], result.stdout
