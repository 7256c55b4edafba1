"""What a batch script is made for: the options of `psgd slurm render` and `submit`, each stated once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def _option(help_text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class BatchOptions:
    """Each field is an option of the same name, `_` for `-`; its help says what it is. None is the default there."""

    servers: int | None = _option("Ranks that hold the parameters.  [default: 1, or 0 where the strategy has none]")
    workers: int | None = _option("Ranks that compute gradients.  [default: the kind's, or what fills --nodes]")
    nodes: int | None = _option("[default: as many as the workers need]")
    gpus_per_node: int | None = _option("One worker a GPU; 0: none.  [default: the kind's]")
    cpus_per_task: int | None = _option("Cores and threads of a rank.  [default: the kind's]")
    mem_per_cpu_mb: int | None = _option("Memory a core.  [default: the cluster's]")
    time_min: int | None = _option("Time limit.  [default: the kind's]")
    job_name: str = _option("Name of the job and of its log.", "psgd")
    account: str | None = _option("Who pays.")
    partition: str | None = _option("Where to run.")
    sbatch: Sequence[str] = _option("A further option for sbatch, like --sbatch=--qos=long; may be repeated.", ())
    module: Sequence[str] = _option("A module to load; may be repeated.", ())
    venv: str | None = _option("Folder of the virtual environment.  [default: .venv; submit: this one]")
    container: str | None = _option("Image to run in with Apptainer, instead of a virtual environment.")
    launcher: str = _option("srun, or mpirun inside the allocation.", "srun")
    mpi: str = _option(
        "srun's plugin: pmix for Open MPI, pmi2 for MPICH.  [default: pmix; submit: that of mpi4py's MPI]", "pmix"
    )
    trial: Sequence[str] = _option("array: train's options of one job, as one text; may be repeated.", ())
    signal_delay_s: int | None = _option("long_job: saves so long before the time limit.  [default: 120]")
    max_restarts: int | None = _option("long_job: times that it goes back into the queue.  [default: 20]")
