"""Was this process started as a rank, and is its MPI the one that was meant? Read from the environment.

Rank and size come from the communicator alone. What a launcher sets in the environment only says, before MPI starts,
whether this is a rank, and afterwards, whether the ranks have found each other.
"""

import functools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from psgd.kernels.errors import UsageError

ALLOW = "PSGD_ALONE"
_PAIRS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
_PAIRS_HERE = (("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))
_SLURM_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # SLURM's batch, interactive and extern steps are numbered from here on

LAUNCHERS = {"prterun", "prted", "prte", "orterun", "orted", "mpirun", "mpirun.openmpi", "mpirun.mpich"}
LAUNCHERS |= {"mpiexec", "mpiexec.openmpi", "mpiexec.mpich", "mpiexec.hydra", "hydra_pmi_proxy", "pmi_proxy"}
LAUNCHERS |= {"slurmstepd", "palsd", "flux-shell", "jsmd", "apinit"}
"""Names of the processes that start ranks, as /proc has them."""

FROM_A_LAUNCHER = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "SLURM_")
"""How the variables begin that make a process a rank of a job; an MPI's settings (`OMPI_MCA_`) are not among them."""


def apart(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes a process a rank of the job that this one is a rank of."""
    return {name: value for name, value in environment.items() if not name.startswith(FROM_A_LAUNCHER)}


def started_here() -> int:
    """How many ranks of this job the launcher has started on this node, as far as it tells them; else 0."""
    told = (os.environ.get(name, "") for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"))
    return next((int(text) for text in told if text.isdecimal()), 0)


def place_here(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """This rank's number among those of its node, and how many these are; None where the launcher does not tell.

    Args:
        environment: variables to read instead of `os.environ`.
    """
    env = os.environ if environment is None else environment
    for rank_name, size_name in _PAIRS_HERE:
        rank, size = _number(env, rank_name), _number(env, size_name)
        if rank is not None and size is not None:
            return rank, size
    rank, node = _number(env, "SLURM_LOCALID"), _number(env, "SLURM_NODEID")
    sizes = [
        int(match[1])
        for match in re.finditer(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        for _ in range(int(match[2] or 1))
    ]
    return (rank, sizes[node]) if rank is not None and node is not None and node < len(sizes) else None


def parent(pid: int) -> tuple[str, int]:
    """The name of a process, and which one started it. Raises OSError where it is gone, or there is no /proc."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name, int(rest.split()[1])


def name_of(pid: int) -> str:
    """The name of a process; empty where it is gone."""
    try:
        return parent(pid)[0]
    except OSError:
        return ""


def ancestors() -> Iterator[tuple[int, str]]:
    """The processes above this one and their names, the nearest first, as far as they show."""
    pid = os.getppid()
    while pid > 1:
        name, above = parent(pid)
        yield pid, name
        pid = above


def sees_all_processes() -> bool:
    """Whether no process of this host is hidden from this one, as in most containers; only Linux tells."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"  # the first one's number is fixed
    except OSError:
        return False


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


def place(environment: Mapping[str, str] | None = None) -> tuple[int, int | None] | None:
    """This process's rank and the job's number of ranks, or None where no launcher started it as a rank.

    The environment of mpirun (Open MPI), Hydra (MPICH, Intel MPI) and srun is known. The number is None where
    the launcher does not set it. A SLURM step of one task counts only when it was given a PMI. No rank is: a batch
    script's body, whatever SLURM_NTASKS says; the shell of `salloc`; what is typed into the shell of `srun --pty`,
    also with `-n 4`.

    Args:
        environment: variables to read instead of `os.environ`.
    """
    env = os.environ if environment is None else environment
    if "OMPI_COMM_WORLD_RANK" not in env and _shell_of_srun(env):
        return None
    for rank_name, size_name in _PAIRS:
        rank = _number(env, rank_name)
        if rank is not None:
            return rank, _number(env, size_name)
    rank, step = _number(env, "SLURM_PROCID"), _number(env, "SLURM_STEP_ID")
    tasks = next((n for name in _SLURM_TASKS if (n := _number(env, name)) is not None), 0)
    if rank is not None and step is not None and step < _FIRST_SPECIAL_STEP and tasks > 1:
        return rank, tasks
    return None


def rank_of(pid: int) -> int | None:
    """Which rank a process of this host is, or was started by; None for none, and for a launcher."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    pairs = (os.fsdecode(word).partition("=") for word in words)
    found = place({name: value for name, _, value in pairs})
    return None if found is None or name_of(pid) in LAUNCHERS else found[0]


def _shell_of_srun(environment: Mapping[str, str]) -> bool:
    """Whether this was typed into the shell of `srun --pty`, which makes each command a process group of its own.

    What `srun --pty` starts itself is a rank, and so is what a launcher starts from that shell: it has no terminal.
    """
    if "SLURM_PTY_PORT" not in environment or not any(map(os.isatty, (0, 1, 2))):
        return False
    try:
        return os.getpgid(int(environment["SLURM_TASK_PID"])) != os.getpgrp()
    except (KeyError, ValueError, OSError):
        return False


class AloneError(UsageError):
    """A launcher has set several ranks, but each has found itself only.

    Attributes:
        cause: what was found.
        fix: what to do about it.
    """

    def __init__(self, expected: int, vendor: tuple[str, tuple[int, ...]]) -> None:
        name = f"{vendor[0]} {'.'.join(map(str, vendor[1]))}"
        slurm = "pmix" if vendor[0] == "Open MPI" else "pmi2"
        self.fix = f"run plain `psgd train`, which finds that one, or under SLURM srun --mpi={slurm}"
        self.cause = (
            f"the environment says {expected} ranks, but each would train alone: they were not started by the "
            f"mpiexec of mpi4py's MPI, {name}"
        )
        super().__init__(f"{self.cause}; {self.fix} ({ALLOW}=1 allows it)")


def expected_ranks() -> int:
    """The number of ranks that a launcher has set, 0 where none did, or where being alone is allowed."""
    found = place()
    return 0 if found is None or os.environ.get(ALLOW) == "1" else found[1] or 0


def refuse_alone() -> None:
    """Refuses a program whose MPI has found one rank only where a launcher has set several.

    Raises:
        AloneError: it says how to start it.
    """
    from mpi4py import MPI

    expected = expected_ranks()
    if expected > 1 and MPI.COMM_WORLD.Get_size() == 1:
        raise AloneError(expected, MPI.get_vendor())


@functools.cache
def node_name() -> str:
    """Distinguishes this process's node from others: the host's name, and the boot of the kernel that it runs on."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot or os.uname().version}"
