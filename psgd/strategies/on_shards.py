"""Which options go together with sharding, for the command. Imports no strategy."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.parallel.axes import ranks_of_a_copy
from psgd.parallel.schedules.catalog import SCHEDULES
from psgd.strategies.requirements import LIBRARY, Spelling

_COMPRESSED = "gradients are sent whole"
_APART = "whose stages take their steps apart"


def check(name: str, values: Mapping[str, Any], sizes: Mapping[str, int], spell: Spelling = LIBRARY) -> None:
    """Refuses what does not go together with `shard`; does nothing where that is not given.

    Args:
        name: the strategy's.
        values: options by name.
        sizes: ranks along each axis of the mesh.
        spell: how messages write options.

    Raises:
        UsageError: the first that does not fit, and why.
    """
    stage = values.get("shard")
    if not stage:
        return
    subject = spell.given("shard", stage)
    if name != "allreduce":
        raise UsageError(f"{subject}: expected {spell.assigned('strategy', 'allreduce')} with it, got {name}")
    alone = ranks_of_a_copy(sizes) > 1 and sizes.get("data") == 1
    if values.get("workers") == 1 or alone:
        raise UsageError(f"{subject}: a single worker has nobody to share with; omit it, or start more workers")
    if (codec := values.get("compress")) not in (None, "none"):
        raise UsageError(f"{spell.given('compress', codec)}: not with {subject}: {_COMPRESSED}; omit it")
    if stage == 1:
        return
    schedule = values.get("pipe_schedule")
    if ranks_of_a_copy(sizes) > 1 and schedule and not SCHEDULES[schedule].flushes:
        raise UsageError(f"{spell.given('pipe_schedule', schedule)}: not with {subject}: {_APART}; omit it")
