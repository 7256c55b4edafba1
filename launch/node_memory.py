"""The memory that ranks of a node share through MPI: whether they may read each other's, and what dead ones left."""

import contextlib
import ctypes
import errno
import os
import time
from pathlib import Path

from psgd.runtime.launcher_env import sees_all_processes

SHM = Path("/dev/shm")
_OF_MPI = ("mpich_shm_", "sm_segment.")  # MPICH's and Open MPI's
_OLD_S, _SOON_S = 60.0, 0.1
"""A file that no process has mapped may be about to be: not when it is so old, or for so long."""


def refusal(process: int, address: int, into: int) -> int:
    """Reads 8 bytes of a process's memory. Returns 0, or why that is refused, an `errno`."""
    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return errno.ENOSYS
    mine, theirs = (ctypes.c_size_t * 2)(into, 8), (ctypes.c_size_t * 2)(address, 8)
    one = (ctypes.c_void_p, ctypes.c_ulong)
    read.argtypes = [ctypes.c_long, *one, *one, ctypes.c_ulong]
    read.restype = ctypes.c_ssize_t
    return 0 if read(process, mine, 1, theirs, 1, 0) == 8 else ctypes.get_errno()


def settings(vendor: str) -> dict[str, str]:
    """Variables that this node's MPI needs: MPICH fails at large messages where a container forbids `process_vm_readv`.

    Tried on this process itself, which only such a filter refuses; of other reasons MPICH knows by itself.

    Args:
        vendor: of the MPI.
    """
    word, copy = ctypes.c_uint64(1), ctypes.c_uint64()
    if vendor == "MPICH" and refusal(os.getpid(), ctypes.addressof(word), ctypes.addressof(copy)):
        return {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}
    return {}


def files() -> set[str]:
    """Names of the files of any MPI in /dev/shm that are this user's."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHM):
            with contextlib.suppress(OSError):
                if entry.name.startswith(_OF_MPI) and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    found.add(entry.name)
    return found


def _mapped() -> set[str]:
    """Names in /dev/shm that processes of this user have mapped; others may not map what is this user's."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is none of ours, as process 1
                if os.geteuid() in (0, process.stat().st_uid):
                    lines = (process / "maps").read_text().splitlines()
                    found |= {line.partition(f"{SHM}/")[2] for line in lines if f"{SHM}/" in line}
    return found


def remove_own() -> None:
    """Removes the files of MPI that this process has mapped, for one that is alone: nobody else will open them.

    The memory stays until the process ends, however that happens. Neither MPI removes them at an Abort, and Open MPI
    not even at its regular end.
    """
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        for name in {line.partition(f"{SHM}/")[2] for line in lines} & files():
            with contextlib.suppress(OSError):
                (SHM / name).unlink()


def remove_leftovers(before: set[str]) -> None:
    """Removes this user's files of MPI that no living process has mapped. Blocks for 0.1 s where there are some.

    Those of a run that has just ended, and old ones where all processes that could have them show.

    Args:
        before: what `files` returned before that run.
    """
    candidates = {name for name in files() if name not in before or (sees_all_processes() and _is_old(name))}
    for wait_s in (0.0, _SOON_S):
        if not candidates:
            return
        time.sleep(wait_s)
        candidates -= _mapped()
    for name in candidates:
        with contextlib.suppress(OSError):
            (SHM / name).unlink()


def _is_old(name: str) -> bool:
    try:
        return time.time() - (SHM / name).lstat().st_mtime > _OLD_S
    except OSError:
        return False
