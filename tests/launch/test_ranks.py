import pytest

from psgd.launch import ranks


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
