"""Gives device pointers to MPI in a job of two ranks of its own, which may crash: run as a module it is such a rank."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 90
_LAUNCHERS = ("OMPI_", "PMIX", "PRTE_", "PMI_", "HYDI", "HYDRA", "MPIR_", "SLURM_", "MPIEXEC")
_SETTINGS = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_accelerator", "OMPI_ALLOW_RUN_AS_ROOT")
_SIZES = (1, 1000, 20_000, 1_500_000)  # float32: each protocol that an MPI has


def settings() -> list[str]:
    """What a trial's result may depend on."""
    names = sorted(name for name in os.environ if name.startswith((*_SETTINGS, "UCX_", "LD_LIBRARY", "CUDA_")))
    return [f"{name}={os.environ[name]}" for name in names]


def run() -> tuple[bool, str]:
    """Whether the trial succeeded, and how that is known. Blocks, for some seconds."""
    beside = Path(sys.executable).parent
    found = next((str(beside / name) for name in ("mpiexec", "mpirun") if (beside / name).exists()), None)
    mpiexec = found or shutil.which("mpiexec") or shutil.which("mpirun")
    if mpiexec is None:
        return False, "UCX has CUDA parts, but there is no mpiexec to try it with; set PSGD_CUDA_AWARE=1 if it works"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHERS) or name.startswith(_SETTINGS)
    }
    environment["PYTHONSAFEPATH"] = "1"  # a cupy.py in the user's folder is not imported
    if os.geteuid() == 0:  # the user who started this rank as root has allowed it
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [mpiexec, "-n", "2", sys.executable, "-m", "psgd.collectives.device.probe"]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"a trial with device pointers failed: {type(error).__name__}"
    if done.returncode == 0 and done.stdout.count(b"right") == 2:
        return True, "a trial with device pointers succeeded"
    return False, f"a trial with device pointers ended with exit code {done.returncode}"


def rank() -> None:
    """One rank of the trial: sends device memory to the other and checks what it receives."""
    import cupy
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
    for n in _SIZES:
        mine = cupy.arange(n, dtype=cupy.float32) + comm.rank
        theirs = cupy.zeros(n, cupy.float32)
        cupy.cuda.get_current_stream().synchronize()
        comm.Sendrecv(mine, 1 - comm.rank, recvbuf=theirs, source=1 - comm.rank)
        if not bool((theirs == cupy.arange(n, dtype=cupy.float32) + (1 - comm.rank)).all()):
            raise SystemExit(3)
    print("right", flush=True)


if __name__ == "__main__":
    rank()
