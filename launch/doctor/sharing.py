"""Memory between processes of a node: shared memory, its size, and reading a peer's memory."""

import errno
import json
import os
from pathlib import Path
from typing import Any

from psgd.launch import node_memory
from psgd.launch.doctor import child
from psgd.launch.doctor.check import Check

SMALL_BYTES = 256 << 20

_MEET = """
import json, sys
import numpy as np
from psgd.collectives.mpi import shared_memory
from psgd.launch import node_memory
asked = json.loads(sys.argv[1])
memory = None if asked["memory"] is None else shared_memory.attach(asked["memory"], 1, "u8")
got = np.zeros(1, "u8")
error = node_memory.refusal(asked["process"], asked["address"], got.ctypes.data)
print(json.dumps([None if memory is None else int(memory[0]), int(got[0]), error]))
"""


def checks(vendor: str | None = None) -> list[Check]:
    """Shared memory, peers' memory, and the room in /dev/shm.

    Args:
        vendor: of the MPI, None where that is not known.
    """
    memory, reading = _meet()
    slower = "ranks of a node send messages instead, which is slower, and hogwild does not run"
    share = "unset PSGD_SHARED" if "PSGD_SHARED" in memory else slower
    allow = (
        "large arrays need one more copy; allow ptrace: sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add "
        "SYS_PTRACE"
    )
    for name, value in node_memory.settings(vendor or "").items():
        allow += f"; {vendor} fails without {name}={value}, which psgd sets; set it for programs of your own"
    return [
        _yes("shared memory", memory, share),
        _yes("reads peers", reading, allow if "process_vm_readv" in reading else ""),
        dev_shm(),
    ]


def _yes(name: str, answer: str, fix: str) -> Check:
    return Check(name, answer) if answer == "yes" else Check(name, answer, "warning", fix)


def _meet() -> tuple[str, str]:
    """Whether processes of this user share memory and read each other's, found by having another one do it.

    It is a child of this process: ptrace_scope 1 keeps a child from its parent's memory, as a rank from another's, but
    not a parent from its child's.
    """
    import secrets

    try:
        import numpy as np

        from psgd.collectives.mpi import shared_memory
    except ImportError as error:
        return (f"unknown: {error}",) * 2
    secret = np.array([secrets.randbits(62)], np.uint64)
    asked: dict[str, Any] = {"process": os.getpid(), "address": secret.ctypes.data, "memory": None}
    cannot, memory = "", None
    try:
        memory = shared_memory.SharedArray(1, np.uint64)
        memory.array[:] = secret
        asked["memory"] = memory.address()
    except AttributeError:
        cannot = "this Python or system has no memfd_create"
    except OSError as error:
        cannot = f"memfd_create: {error.strerror}"
    printed = child.output(_MEET, json.dumps(asked))
    if memory is not None:
        memory.seal()
    try:
        mapped, read, number = json.loads(printed or "")
    except ValueError:
        return ("unknown: the second process of the test fails",) * 2
    if not cannot and mapped != secret[0]:
        cannot = "another process cannot open this one's memory"
    if not cannot and not shared_memory.enabled():
        cannot = "disabled by PSGD_SHARED=0"
    refused = "" if read == secret[0] else f"process_vm_readv: {os.strerror(number)}"
    if number == errno.EPERM:
        refused += f" ({yama()})"
    return f"no, {cannot}" if cannot else "yes", f"no, {refused}" if refused else "yes"


def yama(path: str = "/proc/sys/kernel/yama/ptrace_scope") -> str:
    """Why a process may not be read: the kernel's setting, where it has one, or the container."""
    try:
        scope = Path(path).read_text().strip()
    except OSError:
        return "the container or a security module forbids it"
    return f"{path} is {scope}" if scope != "0" else f"{path} is 0, so the container forbids it"


def dev_shm(path: str = "/dev/shm") -> Check:
    """The room in /dev/shm: psgd needs none of it, but MPI keeps its own shared memory there."""
    try:
        room = os.statvfs(path)
    except OSError as error:
        fix = "MPI will be slow or fail; mount a tmpfs there"
        return Check("/dev/shm", f"{path}: {error.strerror}", "warning", fix)
    free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    value = f"{free / 2**30:.2f} of {size / 2**30:.2f} GiB free"
    if free < SMALL_BYTES:
        return Check("/dev/shm", value, "warning", "MPI may crash there; docker run --shm-size=2g, or remove old files")
    return Check("/dev/shm", value)
