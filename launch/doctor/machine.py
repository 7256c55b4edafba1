"""This host: Python, cores and how many of them this process may use, threads."""

import importlib.util
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from psgd.launch import threads
from psgd.launch.cores import usable
from psgd.launch.doctor import child
from psgd.launch.doctor.check import Check


def checks() -> list[Check]:
    """Software, cores, threads."""
    from psgd.launch.doctor.versions import psgd as own

    found = [Check("python", f"{platform.python_version()} ({sys.executable})"), Check("psgd", own())]
    found += [Check(name, child.installed(name) or "-") for name in ("mpi4py", "numpy", "numba")]
    if importlib.util.find_spec("numba") is None:
        found[-1] = Check("numba", "no: not installed", "wrong", "pip install numba")
    return [*found, tuning(), cores(), *quota(), blas(os.environ)]


def tuning() -> Check:
    """The table of algorithms and what is in it. Reads the file only; training does not go by it."""
    try:
        from psgd.collectives.dispatch import tuning as table
    except (ImportError, RuntimeError) as error:  # also Numba's, where it does not fit this NumPy
        return Check("tuning", f"unknown: {str(error).splitlines()[0]}")
    path = table.path()
    try:
        entries = table.read(path)
    except ValueError as error:
        return Check("tuning", f"not valid: {error}", "warning", "psgd bench allreduce --tune writes a new one")
    if not path.exists():
        return Check("tuning", f"no file {path}: built-in limits")
    return Check("tuning", f"{path} ({len(entries)} {'entry' if len(entries) == 1 else 'entries'})")


def cores() -> Check:
    """The physical cores that this process may run on."""
    count, allowed, all_of_them = len(usable()), len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if allowed == all_of_them:
        several = f" ({allowed} hardware threads)" if allowed > count else ""
        return Check("cores", f"{count}{several}, all of this host's")
    value = f"{count}: this process is bound to {allowed} of {all_of_them} CPUs"
    if allowed == 1 and all_of_them > 1 and "SLURM_JOB_ID" not in os.environ:
        fix = "psgd train will share it between its ranks; taskset, the container or the shell's cpuset sets it"
        return Check("cores", value, "warning", fix)
    return Check("cores", value)


def quota(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> list[Check]:
    """A limit on CPU time, which containers set and which no count of cores shows."""
    limit = cpu_limit(root, groups)
    allowed = len(os.sched_getaffinity(0))
    if limit is None or limit >= allowed:
        return []
    fix = f"start at most {max(1, int(limit))} ranks here, or docker run --cpus={allowed}"
    return [Check("cpu quota", f"{limit:g} CPUs' time for {allowed} CPUs: ranks are paused in turn", "warning", fix)]


def cpu_limit(root: str, groups: str) -> float | None:
    """CPUs' worth of time that the control group of this process, or one above it, may use; None is no limit."""
    try:
        own = Path(groups).read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in own:
        _, names, path = line.split(":", 2)
        folder = Path(root, *(["cpu"] if names else []), path.lstrip("/"))
        if names and "cpu" not in names.split(","):
            continue
        for place in (folder, *folder.parents):
            if not place.is_relative_to(root):
                break
            limits += [limit for limit in (_limit(place),) if limit is not None]
    return min(limits, default=None)


def _limit(folder: Path) -> float | None:
    try:
        if (both := folder / "cpu.max").exists():
            time_us, period_us = both.read_text().split()
        else:
            time_us = (folder / "cpu.cfs_quota_us").read_text().strip()
            period_us = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return float(time_us) / float(period_us) if time_us.isdecimal() and int(period_us) else None


def blas(environment: Mapping[str, str]) -> Check:
    """Threads of BLAS and Numba in each rank, against the cores."""
    allowed = len(os.sched_getaffinity(0))
    given = {name: environment[name] for name in threads.VARIABLES if name in environment}
    counts = [int(value) for value in given.values() if value.isdecimal()]
    shown = ", ".join(f"{name}={value}" for name, value in given.items()) or "1 per rank: psgd sets it"
    if counts and max(counts) > allowed:
        fix = f"set OMP_NUM_THREADS to at most {allowed}, or unset it: psgd then uses 1 per rank"
        return Check("threads", f"{shown}: more than the {allowed} CPUs here", "warning", fix)
    return Check("threads", shown)
