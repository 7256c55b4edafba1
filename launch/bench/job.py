"""Running a benchmark's ranks: start them with the launcher, or be one of them."""

from collections.abc import Callable

from psgd.kernels.errors import UsageError
from psgd.launch import ranks, spawn
from psgd.launch.output import exit_status


def run(
    name: str,
    count: int,
    body: Callable[[bool], int | None],
    *,
    fixed: bool = True,
    what: str = "servers + workers",
    mpiexec_args: str = "",
    bind: bool = True,
    survives: bool = False,
) -> int:
    """Runs `body(first)` on each rank of this job; where there is none, starts `count` ranks of this command.

    Blocks.

    Args:
        name: of the benchmark, for messages.
        count: ranks that it needs.
        body: one rank's part, called with whether it is rank 0; starts MPI itself. May return an exit code.
        fixed: a job of another number of ranks is refused.
        what: gave the number, for that message.
        mpiexec_args: more arguments for mpiexec, as in a shell.
        bind: each rank to a core, where there are enough.
        survives: the job goes on without ranks that die, where the MPI can.

    Returns:
        The exit code: the one of rank 0 where that reports to a launcher of psgd.

    Raises:
        UsageError: this job has another number of ranks. Raised before MPI starts where the launcher
            gives that number.
    """
    place = ranks.place()
    if place is None:
        return spawn.run(spawn.again(), count, mpiexec_args, bind=bind, survives=survives)
    rank, size = place
    if fixed and size is not None:
        check(name, count, size, what)
    code = body(rank == 0) or 0
    if rank == 0 and exit_status.report(code):
        return 0  # mpiexec would take another code for a crash
    return code


def check(name: str, count: int, size: int, what: str = "servers + workers") -> None:
    """Refuses a job of the wrong size.

    Raises:
        UsageError: `size` is not `count`.
    """
    if size != count:
        raise UsageError(f"bench {name}: expected a job of {count} ranks ({what}), got {size}; use -n {count}")
