"""Whether the MPI takes device pointers, decided without risk: an MPI that does not ends the process when it gets one.

In order: PSGD_CUDA_AWARE; MPI's own query; the memory kinds that MPI reports (MPI 4.1); switches of MPIs that
have them; and where UCX was loaded with its CUDA parts, which Open MPI's query does not see, a trial in a job of its
own, whose crash harms nobody. What a trial showed is kept in a file.
"""

import ctypes
import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.agreement import TEXT_BYTES, packed, unpacked
from psgd.collectives.mpi.env import switch
from psgd.kernels.errors import AgreedUsageError

Verdict = tuple[bool, str]


def cuda_aware(comm: MPI.Intracomm) -> Verdict:
    """Whether device pointers may be given to MPI on all ranks, and how that is known.

    Collective over `comm`, blocks. The first rank decides; a variable in the way is an error on all ranks.
    """
    words = np.zeros(2 + TEXT_BYTES, np.uint8)
    if comm.rank == 0:
        try:
            aware, why = decide()
        except ValueError as error:
            words[1], why, aware = 1, str(error), False
        words[0] = aware
        words[2:] = packed(why)
    comm.Bcast(words, 0)
    why = unpacked(words[2:])
    if words[1]:
        raise AgreedUsageError(why)
    return bool(words[0]), why


def decide(trial: Callable[[], Verdict] | None = None) -> Verdict:
    """The same for this process, without a word to others.

    Args:
        trial: the trial to run where nothing else decides; by default a job of its own.

    Raises:
        UsageError: PSGD_CUDA_AWARE is neither 0 nor 1.
    """
    forced = switch("PSGD_CUDA_AWARE")
    if forced is not None:
        return forced, f"PSGD_CUDA_AWARE={int(forced)}"
    files = loaded()
    for known in (_query(files), _memory_kinds(), _switches()):
        if known is not None:
            return known
    ucx = next((path for path in files if path.name.startswith("libucp")), None)
    if ucx is None:
        return False, f"{_mpi()} has no support for CUDA built in, and UCX is not loaded"
    if not _has_cuda(ucx):
        return False, f"{_mpi()} has no support for CUDA built in, and neither has UCX in {ucx.parent}"
    if not any(path.name.startswith("libuct_cuda") for path in files):
        return False, f"UCX in {ucx.parent} has CUDA parts, but MPI does not use UCX; try mpirun --mca pml ucx"
    return (trial or (lambda: _tried(ucx)))()


def loaded() -> list[Path]:
    """The shared libraries of this process."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return [Path(name) for name in dict.fromkeys(re.findall(r"(/\S+\.so[.\d]*)", text))]


def _query(files: list[Path]) -> Verdict | None:
    """MPI's own answer, where it has one and it is yes."""
    for path in files:
        if not path.name.startswith(("libmpi.", "libmpi_")):
            continue
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        if hasattr(library, "MPIX_Query_cuda_support") and library.MPIX_Query_cuda_support() == 1:
            return True, "MPIX_Query_cuda_support says so"
        if hasattr(library, "MPIX_GPU_query_support"):
            answer = ctypes.c_int(0)
            if library.MPIX_GPU_query_support(0, ctypes.byref(answer)) == 0 and answer.value:
                return True, "MPIX_GPU_query_support says so"
    return None


def _memory_kinds() -> Verdict | None:
    info = MPI.COMM_WORLD.Get_info()
    try:
        kinds = info.Get("mpi_memory_alloc_kinds") or ""
    finally:
        info.Free()
    return (True, f"mpi_memory_alloc_kinds is {kinds}") if "cuda" in kinds else None


def _switches() -> Verdict | None:
    for name in ("MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA", "MVP_USE_CUDA"):
        if os.environ.get(name) == "1":
            return True, f"{name}=1"
    return None


def _has_cuda(ucx: Path) -> bool:
    return any(ucx.parent.glob("ucx/libuct_cuda*"))


def _mpi() -> str:
    vendor, version = MPI.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"


def _tried(ucx: Path) -> Verdict:
    """The result of a trial, from a file where the same was tried before."""
    from psgd.collectives.device import probe

    facts = [socket.gethostname(), _mpi(), str(ucx), *probe.settings()]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "psgd" / f"cuda_aware-{key}.json"
    try:
        kept = json.loads(path.read_text())
        return bool(kept["aware"]), str(kept["why"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    aware, why = probe.run()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".psgd-{secrets.token_hex(8)}.part")
        with new.open("x") as file:
            file.write(json.dumps({"aware": aware, "why": why}))
        new.replace(path)
    except OSError:
        pass  # then the next run tries again
    return aware, why
