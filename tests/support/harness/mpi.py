"""The MPI of this environment: its mpiexec, its flags, and the variables that ranks get."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
FROM_A_LAUNCHER = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "MPI_LOCAL")
TOKEN = "PSGD_TEST_TOKEN"  # marks every process of a job, also those that lost their parents


@functools.cache
def mpiexec() -> str:
    """Finds the mpiexec beside this Python, else the one that psgd itself would take."""
    if beside := shutil.which("mpiexec", path=str(Path(sys.prefix) / "bin")):
        return beside
    from psgd.launch import mpiexec as finder

    return finder.find(finder.library())


@functools.cache
def is_open_mpi() -> bool:
    """Asks mpiexec, since asking mpi4py would load MPI into the pytest process."""
    asked = subprocess.run([mpiexec(), "--version"], capture_output=True, text=True, timeout=30, check=False)
    return "Open MPI" in asked.stdout or "OpenRTE" in asked.stdout


def command(n: int, ulfm: bool = False) -> list[str]:
    """Argument list that starts n ranks of what is appended to it."""
    words = [mpiexec()]
    if is_open_mpi():
        words += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "^ofi"]
        words += ["--with-ft", "ulfm"] if ulfm else []
    return [*words, "-n", str(n)]


def below_a_launcher(folder: Path, argv: Sequence[str]) -> list[str]:
    """Argument list that runs a program below a process with a launcher's name, as a rank is; it sets no variables."""
    launcher = folder / "mpirun"
    launcher.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    launcher.chmod(0o755)
    return [str(launcher), *argv]


@functools.cache
def _sessions() -> Path:
    """A folder for what jobs of this process leave in TMPDIR; its name is short, and it is gone when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="psgd-s"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def environment(token: str, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Variables for a job: one thread a rank, the psgd under test, nothing of an outer launcher."""
    import psgd

    env = {name: value for name, value in os.environ.items() if not name.startswith(FROM_A_LAUNCHER)}
    env.update(dict.fromkeys(THREADS, "1"))
    root = str(Path(psgd.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    env[TOKEN] = token
    # A killed mpirun leaves its session's folder, named by its process, and a later one of that number does not start.
    folder = _sessions() / token[:12]
    folder.mkdir(exist_ok=True)
    env["TMPDIR"] = str(folder)
    return {**env, **(extra or {})}
