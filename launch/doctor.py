"""`psgd doctor`: what will work here, and how to mend the rest."""

import errno
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import click

import psgd
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
        **_sharing(),
        "tuning": None,
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
    elif found["mpi"] is not None:
        found["tuning"] = _tuning()
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


_MEET = """
import ctypes, errno, json, sys
import numpy as np
from psgd.collectives import shared
asked = json.loads(sys.argv[1])
memory = None if asked["memory"] is None else shared.attach(asked["memory"], 1, "u8")
got = np.zeros(1, "u8")
try:
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    mine, theirs = ((ctypes.c_size_t * 2)(address, 8) for address in (got.ctypes.data, asked["address"]))
    read.argtypes = [ctypes.c_long, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
    read.restype = ctypes.c_ssize_t
    error = 0 if read(asked["process"], mine, 1, theirs, 1, 0) == 8 else ctypes.get_errno()
except AttributeError:
    error = errno.ENOSYS
print(json.dumps([None if memory is None else int(memory[0]), int(got[0]), error]))
"""


def _sharing() -> dict[str, str]:
    """Tells whether processes of this user share memory and read each other's, by having another one do it.

    It is a child of this process: ptrace_scope 1 keeps a child from its parent's memory, as a rank from another's, but
    not a parent from its child's.
    """
    import secrets

    names = ("shared_memory", "reads_peers")
    try:
        import numpy as np

        from psgd.collectives import shared
    except ImportError as error:
        return dict.fromkeys(names, f"not known: {error}")
    secret = np.array([secrets.randbits(62)], np.uint64)
    asked: dict[str, Any] = {"process": os.getpid(), "address": secret.ctypes.data, "memory": None}
    cannot, memory = "", None
    if not hasattr(os, "memfd_create"):
        cannot = "this Python or system has no memfd_create"
    else:
        try:
            memory = shared.SharedArray(1, np.uint64)
            memory.array[:] = secret
            asked["memory"] = memory.address()
        except OSError as error:
            cannot = f"memfd_create: {error.strerror}"
    told = _child(_MEET, json.dumps(asked))
    if memory is not None:
        memory.seal()
    try:
        mapped, read, number = json.loads(told or "")
    except ValueError:
        return dict.fromkeys(names, "not known: a second process to try it fails")
    if not cannot and mapped != secret[0]:
        cannot = "another process cannot open this one's memory"
    if not cannot and not shared.enabled():
        cannot = "switched off by PSGD_SHARED=0"
    refused = "" if read == secret[0] else f"process_vm_readv: {os.strerror(number)}"
    if number == errno.EPERM:
        refused += "; /proc/sys/kernel/yama/ptrace_scope or the container forbids it"
    return {name: f"no, {why}" if why else "yes" for name, why in zip(names, (cannot, refused), strict=True)}


def _tuning() -> str:
    """The table of algorithms and what is in it. MPI is loaded by now, and stays unstarted."""
    try:
        from psgd.collectives import tuning
    except ImportError as error:  # also Numba's, where it does not fit this NumPy
        return f"not known: {error}"
    path = tuning.path()
    try:
        entries = tuning.read(path)
    except ValueError as error:
        return f"not valid: {error}"
    if not path.exists():
        return f"{path} (none there: built-in limits)"
    return f"{path} ({len(entries)} {'entry' if len(entries) == 1 else 'entries'})"


def _threads() -> str | None:
    """Starts MPI in a process of its own, since starting may fail or hang, and asks for the thread level."""
    return _child(_ASK)


def _child(code: str, *arguments: str) -> str | None:
    """What a Python process of its own prints, or None where it fails or hangs."""
    import subprocess

    env = {"OMPI_MCA_btl": "^ofi", **os.environ}
    # Not from the user's folder: a struct.py there would be imported in place of Python's. psgd may be from there.
    root = str(Path(psgd.__file__).resolve().parent.parent)
    command = [sys.executable, "-c", f"import sys; sys.path[:1] = []; sys.path.append({root!r})\n{code}", *arguments]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
