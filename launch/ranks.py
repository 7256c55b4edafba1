"""Is this process a rank of an MPI job? Read from the environment and /proc, without starting MPI.

A launcher's variables alone do not say so: all that a rank starts inherits them, and so does what outlives the job.
"""

import os
import stat
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.launch import cores
from psgd.launch.output import exit_status, merged, terminal
from psgd.runtime.launcher_env import FROM_A_LAUNCHER, LAUNCHERS, ancestors, name_of, place, sees_all_processes

__all__ = ["leave", "place", "refuse", "speaks"]

_OURS = (exit_status.VARIABLE, terminal.VARIABLE, merged.VARIABLE, cores.VARIABLE)
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"}
"""Never ranks themselves, even where a tool has preloaded MPI."""


def speaks() -> bool:
    """Whether this process may print help and usage errors: no rank, or rank 0."""
    found = place()
    return found is None or found[0] == 0


def refuse(command: str) -> None:
    """For a command that starts the processes of its runs itself.

    Raises:
        UsageError: this process is a rank of a job.
    """
    if place() is not None:
        raise UsageError(f"{command}: starts the processes of each run itself; run it without mpirun or srun")


def leave() -> None:
    """Forgets a launcher's variables where this process has them, but is not the rank that they are for.

    MPI would take it for that rank, and wait for ever or abort. To be called before all else.
    """
    if place() is not None and _inherited():
        for name in list(os.environ):
            if (name.startswith(FROM_A_LAUNCHER) and name != "SLURM_CONF") or name in _OURS:
                del os.environ[name]


def _inherited() -> bool:
    """Whether the rank is another process, or no longer there. False where that cannot be known."""
    if "PMI_FD" in os.environ and not _is_socket(os.environ["PMI_FD"]):
        return True
    try:
        for pid, name in ancestors():
            if name in LAUNCHERS:  # a job's body has the variables of the mpirun that submitted it
                return name == "slurmstepd" and "OMPI_COMM_WORLD_RANK" in os.environ
            if name not in _SHELLS and _is_that_rank(pid):
                return True
        return not _connected() and (_has_channel() or sees_all_processes())
    except OSError:
        return False


def _is_that_rank(pid: int) -> bool:
    """Whether a process has loaded MPI and the variables of this one. False where it may not be looked at."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return "/libmpi" in maps and place({name: value for name, _, value in pairs}) == place()


def _has_channel() -> bool:
    return "PMI_FD" in os.environ or any(name.startswith("PMIX_SERVER_URI") for name in os.environ)


def _connected() -> bool:
    """Whether a launcher that is not seen above this process, as from within a container, can be reached."""
    if "PMI_FD" in os.environ:
        return True  # and open
    # As in `prterun-HOST-PROCESS@1`: of this process's own view of processes it would have been seen above.
    process = os.environ.get("PMIX_NAMESPACE", "").partition("@")[0].rpartition("-")[2]
    if process.isdecimal() and name_of(int(process)) in LAUNCHERS:
        return False
    addresses = (value for name, value in os.environ.items() if name.startswith("PMIX_SERVER_URI"))
    return any(_listens(address.rpartition(":")[2]) for address in addresses)


def _is_socket(descriptor: str) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(int(descriptor)).st_mode)
    except (OSError, ValueError):
        return False


def _listens(port: str) -> bool:
    """Whether a process of this host listens on a TCP port."""
    listening = "0A"
    if not port.isdecimal():
        return False
    for table in ("tcp", "tcp6"):
        rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:] if Path(f"/proc/net/{table}").exists() else []
        for row in rows:
            _, local, _, state, *_ = row.split()
            if state == listening and int(local.rpartition(":")[2], 16) == int(port):
                return True
    return False
