"""SLURM: whether it is here, and whether srun can start ranks of this MPI."""

import os
import shutil

from psgd.launch.doctor import child
from psgd.launch.doctor.check import Check

_FITTING = {"Open MPI": ("pmix",), **dict.fromkeys(("MPICH", "MVAPICH", "Intel MPI"), ("pmi2", "pmix"))}


def checks(vendor: str | None) -> list[Check]:
    """Version, job, MPI plugins.

    Args:
        vendor: of mpi4py's MPI, None where that is not known.
    """
    if shutil.which("srun") is None:
        if "SLURM_JOB_ID" not in os.environ:
            return [Check("slurm", "none here")]
        fix = "bind the host's srun into the container, or start with srun outside of it"
        return [Check("slurm", f"job {os.environ['SLURM_JOB_ID']}, but srun is not on PATH", "warning", fix)]
    version = child.printed(["srun", "--version"]) or "srun of an unknown version"
    job = os.environ.get("SLURM_JOB_ID")
    found = [Check("slurm", f"{version}, {f'in job {job}' if job else 'not in a job'}")]
    listed = child.printed(["srun", "--mpi=list"], errors=True)
    if not listed:
        cause = "unknown: srun --mpi=list fails"
        return [*found, Check("srun --mpi", cause, "warning", "is slurmctld up? scontrol ping")]
    return [*found, plugin(listed, vendor)]


def plugin(listed: str, vendor: str | None) -> Check:
    """Whether one of srun's plugins fits the MPI.

    Args:
        listed: what `srun --mpi=list` prints.
        vendor: of the MPI.
    """
    names = {word.strip(",.") for word in listed.split()}
    names |= {name.split("_v")[0] for name in names}
    here = [name for name in ("pmix", "pmi2", "pmi1", "cray_shasta") if name in names]
    shown = ", ".join(here) or "none"
    fitting = _FITTING.get(vendor or "", ())
    if vendor is not None and fitting and not any(name in here for name in fitting):
        fix = "start with mpirun inside the job instead (sbatch, then mpirun), or have Slurm's PMIx plugin installed"
        return Check("srun --mpi", f"{shown}; {vendor} needs {' or '.join(fitting)}", "warning", fix)
    use = next((name for name in fitting if name in here), None)
    return Check("srun --mpi", f"{shown}; for {vendor} use srun --mpi={use}" if use else shown)
