"""The memory that processes of this node may use: the machine's, a control group's, or a SLURM job's."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Limit:
    """A number of bytes, and who says so."""

    nbytes: int
    whose: str


def of_node(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> Limit | None:
    """Returns the lowest limit for all processes of this job on this node together; None where nothing tells.

    Args:
        environment: variables to read instead of `os.environ`.
        root: of the file system.
    """
    env = os.environ if environment is None else environment
    return min((*_machine(root), *_groups(root), *_slurm(env)), default=None)


def _machine(root: Path) -> Iterator[Limit]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[0].isdecimal():
            yield Limit(int(value.split()[0]) << 10, "this machine has")


def _groups(root: Path) -> Iterator[Limit]:
    """Those of this process's control groups and of all above them. A container shows them under another path."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            text = _text(folder / name).strip()
            if text.isdecimal() and 0 < int(text) < 1 << 60:  # else unlimited
                yield Limit(int(text), "its control group may use")
            if folder == top:
                break


def _slurm(env: Mapping[str, str]) -> Iterator[Limit]:
    """Of a job's memory on this node; 0 stands for all of it."""
    if "SLURM_JOB_ID" not in env:
        return
    node, each = env.get("SLURM_MEM_PER_NODE", ""), env.get("SLURM_MEM_PER_CPU", "")
    cpus = env.get("SLURM_CPUS_ON_NODE", "")
    if node.isdecimal() and int(node):
        yield Limit(int(node) << 20, "SLURM allows")
    elif each.isdecimal() and cpus.isdecimal() and int(each) * int(cpus):
        yield Limit(int(each) * int(cpus) << 20, "SLURM allows")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
