"""Is this process already a rank of an MPI job? Told by the environment, without starting MPI."""

import os
from collections.abc import Mapping

_PAIRS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
_SLURM_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    return next((n for name in _SLURM_TASKS if (n := _number(environment, name)) is not None), 0)


def place(environment: Mapping[str, str] | None = None) -> tuple[int, int | None] | None:
    """Tells this process's rank and the job's number of ranks, or None where no MPI launcher started it.

    The environment of mpirun (Open MPI), Hydra (MPICH, Intel MPI) and srun is known. The number is None where
    the launcher does not tell. A SLURM step of one task counts only when it was given a PMI: the shell of
    `srun --pty bash` is no rank.

    Args:
        environment: variables to read instead of `os.environ`.
    """
    env = os.environ if environment is None else environment
    for rank_name, size_name in _PAIRS:
        rank = _number(env, rank_name)
        if rank is not None:
            return rank, _number(env, size_name)
    rank = _number(env, "SLURM_PROCID")
    if rank is not None and "SLURM_STEP_ID" in env and _slurm_tasks(env) > 1:
        return rank, _slurm_tasks(env)
    return None


def speaks() -> bool:
    """Whether this process may print help and usage errors: no rank, or rank 0."""
    found = place()
    return found is None or found[0] == 0
