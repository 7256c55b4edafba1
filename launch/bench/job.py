"""Running a benchmark's ranks: start them with the launcher, or be one of them."""

from collections.abc import Callable

from psgd.kernels.errors import UsageError
from psgd.launch import outcome, ranks, spawn


def run(name: str, count: int, body: Callable[[bool], None]) -> int:
    """Runs `body(first)` on each rank of this job; where there is none, starts `count` ranks of this command.

    Blocks.

    Args:
        name: of the benchmark, for messages.
        count: ranks that it needs.
        body: one rank's part, told whether it is rank 0; starts MPI itself.

    Returns:
        The exit code.

    Raises:
        UsageError: this job has another number of ranks. MPI is not started for it where the launcher tells.
    """
    place = ranks.place()
    if place is None:
        return spawn.run(spawn.again(), count)
    rank, size = place
    if size is not None:
        check(name, count, size)
    body(rank == 0)
    if rank == 0:
        outcome.report(0)
    return 0


def check(name: str, count: int, size: int) -> None:
    """Refuses a job of the wrong size.

    Raises:
        UsageError: `size` is not `count`.
    """
    if size != count:
        raise UsageError(
            f"bench {name}: expected a job of {count} ranks (servers + workers), got {size}; use -n {count}"
        )
