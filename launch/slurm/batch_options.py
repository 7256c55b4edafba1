"""The options of `psgd slurm render` and `submit`, each stated once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def _option(help_text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class BatchOptions:
    """Each field is an option of the same name, `_` for `-`; its help says what it is. None is the default there."""

    servers: int | None = _option("Number of servers.  [default: 1, or 0 if the strategy has none]")
    workers: int | None = _option("Number of workers.  [default: the kind's, or enough to fill --nodes]")
    nodes: int | None = _option("Number of nodes.  [default: as many as the workers need]")
    gpus_per_node: int | None = _option("GPUs per node, one for each worker; 0 for none.  [default: the kind's]")
    cpus_per_task: int | None = _option("Cores and threads per rank.  [default: the kind's]")
    mem_per_cpu_mb: int | None = _option("Memory per core, in MB.  [default: the cluster's]")
    time_min: int | None = _option("Time limit, in minutes.  [default: the kind's]")
    job_name: str = _option("Name of the job and of its log file.", "psgd")
    account: str | None = _option("Account to charge.")
    partition: str | None = _option("Partition to run in.")
    sbatch: Sequence[str] = _option("Another option for sbatch, such as --sbatch=--qos=long; may be repeated.", ())
    module: Sequence[str] = _option("Module to load; may be repeated.", ())
    venv: str | None = _option("Folder of the virtual environment.  [default: .venv; submit: the one in use]")
    container: str | None = _option("Image to run in with Apptainer, instead of a virtual environment.")
    launcher: str = _option("srun, or mpirun inside the allocation.", "srun")
    mpi: str = _option(
        "srun's plugin: pmix for Open MPI, pmi2 for MPICH.  [default: pmix; submit: the one for mpi4py's MPI]", "pmix"
    )
    trial: Sequence[str] = _option("array: options of psgd train for one job, in quotes; may be repeated.", ())
    signal_delay_s: int | None = _option(
        "long_job: how long before the time limit it saves, in seconds.  [default: 120]"
    )
    max_restarts: int | None = _option("long_job: how many times it may requeue itself.  [default: 20]")
