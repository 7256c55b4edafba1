"""What ranks that stand by need: nothing but Python and MPI at first, and in another's place as much as that one."""

from dataclasses import replace

from psgd.estimate.rank_memory import Estimate
from psgd.estimate.whole_run import RunMemory

SPARE = "spare, in the place of another"


def with_spares(run: RunMemory) -> RunMemory:
    """The run with its spares beside its ranks.

    A spare may take any rank's place: it needs as much as the one that needs the most, row by row.
    """
    if not run.config.spares:
        return run
    most = max(run.ranks, key=lambda each: each.total)
    return replace(run, ranks=[*run.ranks, Estimate(SPARE, run.config.spares, most.rows, most.device)])
