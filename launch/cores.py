"""Cores for the ranks of a job on one host: only such as no other job has.

A launcher counts cores from the first one, and so does the next: two jobs would share some while others are idle. So
psgd's own launcher chooses the cores, keeps them from its like, and each rank binds itself to its own.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from psgd.runtime.launcher_env import place, sees_all_processes

VARIABLE = "PSGD_CORES"
"""The CPUs of each rank, as `0,32;1,33`."""
BUSY_S = 0.1


def usable() -> dict[str, list[int]]:
    """The physical cores that this process may run on: by the system's name of each, those of its CPUs."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            name = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            name = str(cpu)
        cores.setdefault(name, []).append(cpu)
    return cores


@contextlib.contextmanager
def reserved(count: int) -> Iterator[list[list[int]]]:
    """So many cores that no other job has, kept from other jobs of psgd in the context; none where there are too few.

    Kept by names that the system frees with the process, however that ends.
    """
    here, found = usable(), list[list[int]]()
    with contextlib.ExitStack() as held:
        if count <= len(here):
            taken = _bound_elsewhere() | (set() if sees_all_processes() else _busy())
            free = [name for name, cpus in here.items() if not taken & set(cpus)]
            for name in free:
                mine = held.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)))
                with contextlib.suppress(OSError):  # another job of psgd has it
                    mine.bind(f"\0psgd-core-{name}")
                    found.append(here[name])
                if len(found) == count:
                    break
        if len(found) < count:
            found = []
            held.close()
        yield found


def text(cores: Sequence[Sequence[int]]) -> str:
    """What `VARIABLE` says of the ranks' cores."""
    return ";".join(",".join(map(str, cpus)) for cpus in cores)


def bind() -> None:
    """Binds this rank to the core that the launcher has reserved for it, if any. Before other threads start."""
    found, given = place(), os.environ.get(VARIABLE, "").split(";")
    with contextlib.suppress(OSError, ValueError):
        if found is not None and found[0] < len(given):
            os.sched_setaffinity(0, map(int, given[found[0]].split(",")))


def _bound_elsewhere() -> set[int]:
    """CPUs of threads that are bound to a part of those that this process may use."""
    ours, taken = os.sched_getaffinity(0), set[int]()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended
            if not (process / "cmdline").read_bytes():
                continue  # the kernel's own threads are bound by nature
            for task in os.listdir(process / "task"):
                cpus = os.sched_getaffinity(int(task))
                if not ours <= cpus:
                    taken |= cpus & ours
    return taken


def _busy() -> set[int]:
    """CPUs that are in use: in a container the processes of others do not show, but their work does. Blocks."""
    before = _idle_ticks()
    time.sleep(BUSY_S)
    after = _idle_ticks()
    return {cpu for cpu, (idle, all_) in after.items() if idle - before[cpu][0] < (all_ - before[cpu][1]) / 2}


def _idle_ticks() -> dict[int, tuple[int, int]]:
    """By CPU, ticks without work and all ticks since the start of the system."""
    found = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *words = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = list(map(int, words[:8]))  # what follows is counted among these
            found[int(name[3:])] = ticks[3] + ticks[4], sum(ticks)
    return found
