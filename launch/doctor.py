"""`psgd doctor`: what will work here, and how to mend the rest."""

import importlib.util
import json
import os
import platform
import sys
from typing import Any

import click

from psgd.kernels.errors import UsageError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Show what will work here, and how to mend the rest. Exits with 1 where training cannot start."""
    found = examine()
    if as_json:
        click.echo(json.dumps(found))
    else:
        for key, value in found.items():
            if key != "problems":
                click.echo(f"{key.replace('_', ' '):<16} {_shown(value)}")
        for problem in found["problems"]:
            click.echo(f"problem: {problem}")
    return 1 if found["problems"] else 0


def examine() -> dict[str, Any]:
    """Looks at this machine. Starts no MPI in this process; a second one starts it to ask for its threads.

    Returns:
        One entry for each line of the report; `problems` lists what keeps training from starting.
    """
    from psgd.launch import mpiexec
    from psgd.launch.cli import version

    problems: list[str] = []
    cores, whole = mpiexec.usable_cores()
    found: dict[str, Any] = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "psgd": version(),
        "mpi4py": _version("mpi4py"),
        "mpi": None,
        "mpi_library": None,
        "mpiexec": None,
        "mpi_threads": None,
        "cores": cores,
        "all_cores": whole,
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "cupy": next((v for name in _CUPY if (v := _version(name))), None),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "problems": problems,
    }
    try:
        library = mpiexec.library()
        found["mpi"] = f"{library.vendor} {library.version}"
        found["mpi_library"] = None if library.path is None else str(library.path)
        found["mpi_threads"] = _threads()
        found["mpiexec"] = mpiexec.find(library)
    except UsageError as error:
        problems.append(str(error))
    if found["mpi"] is not None and found["mpi_threads"] is None:
        problems.append("MPI: MPI_Init fails; `python -c 'from mpi4py import MPI'` shows why")
    if importlib.util.find_spec("numba") is None:
        problems.append("numba: not installed; pip install numba")
    return found


_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


_ASK = """
from mpi4py import MPI
names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
print(names.get(MPI.Query_thread(), "multiple"))
"""


def _threads() -> str | None:
    """Starts MPI in a process of its own, since starting may fail or hang, and asks for the thread level."""
    import subprocess

    env = {"OMPI_MCA_btl": "^ofi", **os.environ}
    # Not from the user's folder: a struct.py there would be imported in place of Python's.
    command = [sys.executable, "-c", f"import sys; sys.path[:1] = []\n{_ASK}"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
