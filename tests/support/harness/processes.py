"""Finds and ends the processes of a job, also those whose launcher died and left them behind."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from harness.mpi import TOKEN


def _others() -> Iterator[Path]:
    """The folders of all processes but this one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            yield folder


def marked(token: str) -> list[int]:
    """Process ids whose environment carries the token; zombies have none."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for folder in _others():
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def holding(*marks: str) -> list[str]:
    """Processes whose command line has one of the marks, zombies apart."""
    found = []
    for folder in _others():
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().replace(bytes(1), b" ").decode(errors="replace")
            if any(mark in words for mark in marks):
                found.append(f"{folder.name}: {words}")
    return found


def kill(token: str) -> None:
    """SIGKILLs all processes that carry the token, until none is left."""
    for _ in range(100):
        pids = marked(token)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def wait_gone(token: str, timeout_s: float) -> list[str]:
    """Waits for all processes of a job to be gone; returns the command lines of those that stay."""
    deadline = time.monotonic() + timeout_s
    while pids := marked(token):
        if time.monotonic() > deadline:
            return [_words(pid) for pid in pids]
        time.sleep(0.05)
    return []


def _words(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}"
    return f"{pid}: gone since"
