"""The start of a rank: MPI, refused where the ranks do not see each other, and what rank 0 says of the job."""

import os
import socket
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psgd.kernels.notice import counted
from psgd.launch import cores, node_memory, threads
from psgd.launch.output import exit_status
from psgd.runtime.launcher_env import AloneError, expected_ranks, node_name, place

if TYPE_CHECKING:
    from mpi4py import MPI

    from psgd.parallel.mesh.node_order import Grid

UNBIND = "mpirun --bind-to none, or a core for each: srun --cpus-per-task=1 --cpu-bind=cores, fewer ranks"
ROOM = "fewer ranks, or more cores for each"
FEWER_THREADS = "fewer ranks or threads (OMP_NUM_THREADS), or more cores for each"
Facts = Mapping[str, Any]


def start() -> "MPI.Intracomm":
    """Starts MPI with all its threads, and returns the communicator of all ranks. Blocks until they are there.

    Raises:
        AloneError: a launcher has set several ranks, and there is only this one.
    """
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    expected = expected_ranks()
    for name, value in node_memory.settings(MPI.get_vendor()[0]).items():
        os.environ.setdefault(name, value)  # also where another launcher than psgd's has started this rank
    # Under another MPI's launcher each rank is alone, or MPICH ends the process before we could say why.
    foreign = expected > 1 and _other_launcher(MPI.get_vendor()[0], MPI.Get_library_version())
    if not foreign and not MPI.Is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py's word on the same thing, once a rank
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if foreign or (expected > 1 and MPI.COMM_WORLD.Get_size() == 1):
        raise AloneError(expected, MPI.get_vendor())
    if MPI.COMM_WORLD.Get_size() == 1 and place() is None:
        node_memory.remove_own()
    return MPI.COMM_WORLD


def _other_launcher(vendor: str, described: str) -> bool:
    """Whether MPICH meets what it cannot start under: Open MPI's mpirun, or PMIx where it was built without it."""
    if vendor == "Open MPI":
        return False
    without = "MPICH configure:" in described and "pmix" not in described
    pmix_only = "PMIX_RANK" in os.environ and not any(name in os.environ for name in ("PMI_RANK", "PMI_FD"))
    return "OMPI_COMM_WORLD_RANK" in os.environ or (without and pmix_only)


def facts() -> dict[str, Any]:
    """What a rank reports of itself: host, node, CPUs that it may run on, threads, GPUs that it may use."""
    given = [os.environ.get(name, "") for name in threads.VARIABLES]
    return {
        "host": socket.gethostname(),
        "node": node_name(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "threads": max((int(number) for number in given if number.isdecimal()), default=1),
        "gpus": gpus(),
    }


def gpus(devices: str = "/dev") -> int:
    """How many GPUs this process may use, as far as that shows without CUDA."""
    files = [file for file in Path(devices).glob("nvidia*") if file.name[6:].isdecimal()]
    count = sum(os.access(file, os.R_OK | os.W_OK) for file in files)
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return count
    return min(count, sum(word.strip() not in ("", "-1") for word in named.split(",")))


def leads(comm: "MPI.Intracomm") -> bool:
    """Whether this rank is the first of its node. Collective, blocks."""
    from psgd.runtime.agreement import gather

    return comm.Get_rank() in leaders(gather(comm, {"node": node_name()}))


def leaders(everyone: Sequence[Facts]) -> list[int]:
    """The first rank of each node, in rank order."""
    first: dict[str, int] = {}
    for rank, each in enumerate(everyone):
        first.setdefault(each["node"], rank)
    return list(first.values())


def line(everyone: Sequence[Facts], servers: int | None = None) -> str:
    """One line on the job: ranks, nodes, threads, GPUs.

    Args:
        everyone: the ranks' facts.
        servers: how many of them serve, if that is to be said.
    """
    size, nodes = len(everyone), len(leaders(everyone))
    roles = "" if servers is None else f" ({counted(servers, 'server')}, {counted(size - servers, 'worker')})"
    most = max(each["threads"] for each in everyone)
    cards = max(each["gpus"] for each in everyone)
    shown = f"{counted(cards, 'GPU')} each" if cards else "no GPU"
    return f"{counted(size, 'rank')} on {counted(nodes, 'node')}{roles}, {counted(most, 'thread')} each, {shown}"


def crowded(everyone: Sequence[Facts]) -> list[tuple[str, str]]:
    """What ranks share by accident: a core to which several are bound, or all cores of a node; and what helps.

    More ranks than cores are no accident where psgd's own launcher has started them.
    """
    found, nodes = list[tuple[str, str]](), defaultdict(list)
    for rank, each in enumerate(everyone):
        nodes[each["node"]].append(rank)
    for members in nodes.values():
        host = everyone[members[0]]["host"]
        all_cpus = {cpu for rank in members for cpu in everyone[rank]["cpus"]}
        bound = Counter(tuple(everyone[rank]["cpus"]) for rank in members)
        tight = [cpus for cpus, count in bound.items() if count > len(cpus) and len(cpus) < len(all_cpus)]
        for cpus in tight:
            together = [rank for rank in members if tuple(everyone[rank]["cpus"]) == cpus]
            found.append((f"{host}: ranks {_brief(together)} are all bound to {_cpus(cpus)}", UNBIND))
        if tight or exit_status.VARIABLE in os.environ:
            continue
        wanted = sum(everyone[rank]["threads"] for rank in members)
        who, what = f"{len(members)} ranks", _cpus(sorted(all_cpus))
        if len(members) > len(all_cpus):
            # Ranks that may run on all cores are not to be unbound.
            one_of_several = len(all_cpus) == 1 < (os.cpu_count() or 1)
            found.append((f"{host}: {who} share {what}", UNBIND if one_of_several else ROOM))
        elif wanted > len(all_cpus):
            found.append((f"{host}: {wanted} threads of {who} share {what}", FEWER_THREADS))
    return found


def ranks_table(everyone: Sequence[Facts], roles: Sequence[str]) -> str:
    """The map of ranks to hosts and roles, a line a rank.

    Args:
        everyone: the ranks' facts.
        roles: `server 0`, `worker 3`, ... by rank.
    """
    rows = [("rank", "host", "role", "cpus")]
    for rank, each in enumerate(everyone):
        rows.append((str(rank), each["host"], roles[rank], _spans(each["cpus"])))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)


def _bound(everyone: Sequence[Facts]) -> str:
    """What psgd's own launcher has done about cores; of others `--verbose` shows it."""
    if cores.VARIABLE in os.environ:
        return f", bound to {_cpus(sorted({cpu for each in everyone for cpu in each['cpus']}))}"
    return ", not bound to cores" if exit_status.VARIABLE in os.environ else ""


def _brief(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"


def _cpus(cpus: Sequence[int]) -> str:
    return f"CPU {cpus[0]}" if len(cpus) == 1 else f"CPUs {_spans(cpus)}"


def _spans(numbers: Sequence[int]) -> str:
    """0, 1, 2, 3, 8 as `0-3,8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def announce(
    comm: "MPI.Intracomm",
    servers: int,
    placement: str,
    verbose: bool,
    note: Callable[[str], None],
    axes: Mapping[str, int] | None = None,
) -> None:
    """Says what job this is, and warns of cores that ranks share by accident. Collective, blocks.

    Args:
        comm: all ranks of the run.
        servers: how many serve.
        placement: as `psgd.runtime.placement` has it.
        verbose: show who is where.
        note: says a line; only rank 0's is heard.
        axes: ranks along each axis of a mesh, without the servers along `data`.
    """
    from psgd.runtime.agreement import gather
    from psgd.runtime.placement import choose

    everyone = gather(comm, facts())
    grid = None if not axes else _grid(everyone, axes, servers)
    note(line(everyone, servers if grid is None else None) + _bound(everyone))
    if grid is not None:
        note(grid.describe(servers))
    for text, fix in crowded(everyone):
        note(f"psgd: warning: {text}; {fix}")
    if verbose and grid is not None:
        note(ranks_table(everyone, grid.roles(servers)))
    elif verbose:
        serving = choose([each["node"] for each in everyone], servers, placement)
        names = {rank: f"server {index}" for index, rank in enumerate(serving)}
        working = (rank for rank in range(len(everyone)) if rank not in names)
        names |= {rank: f"worker {index}" for index, rank in enumerate(working)}
        note(ranks_table(everyone, [names[rank] for rank in range(len(everyone))]))


def _grid(everyone: Sequence[Facts], axes: Mapping[str, int], servers: int) -> "Grid":
    """Who is where in a mesh of these ranks."""
    from psgd.parallel.axes import ranks_of_a_copy
    from psgd.parallel.mesh.node_order import Grid

    sizes = {**axes, "data": len(everyone) // ranks_of_a_copy(axes)}
    return Grid([each["node"] for each in everyone], sizes)
