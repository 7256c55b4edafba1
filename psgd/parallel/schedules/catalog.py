"""The schedules by name. Loads none of them until it is asked for one, and no NumPy."""

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from psgd.kernels.errors import UsageError
from psgd.parallel.schedules.schedule import Schedule


@dataclass(frozen=True)
class ScheduleEntry:
    """What is known of a schedule before its module is imported.

    Attributes:
        module: has `build(ranks, microbatches)`.
        chunks: `build` also takes `chunks`, of 2 or more a rank.
        trains: it has backward passes.
        flushes: as in `Schedule`.
    """

    module: str
    chunks: bool = False
    trains: bool = True
    flushes: bool = True


SCHEDULES: dict[str, ScheduleEntry] = {
    "gpipe": ScheduleEntry("psgd.parallel.schedules.gpipe"),
    "1f1b": ScheduleEntry("psgd.parallel.schedules.one_f_one_b"),
    "inference": ScheduleEntry("psgd.parallel.schedules.inference", trains=False),
}
NAMES = tuple(SCHEDULES)


@lru_cache(maxsize=64)
def make(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Makes a schedule, or returns the one made before.

    Args:
        name: one of `NAMES`.
        ranks: of the pipeline, 1 or more.
        microbatches: of one batch, 1 or more; fewer than ranks are fine.
        chunks: stages of each rank. Only interleaved schedules have more than 1.

    Raises:
        UsageError: a name, number or combination that there is not.
    """
    if name not in SCHEDULES:
        raise UsageError(f"schedule: expected one of {', '.join(NAMES)}, got {name!r}")
    for what, number in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise UsageError(f"schedule: {what}: expected 1 or more, got {number}")
    entry = SCHEDULES[name]
    build = import_module(entry.module).build
    if entry.chunks:
        return build(ranks, microbatches, chunks)
    if chunks > 1:
        able = [each for each, other in SCHEDULES.items() if other.chunks]
        raise UsageError(
            f"schedule {name}: expected 1 chunk a rank, got {chunks}; more go with {' or '.join(able) or 'none yet'}"
        )
    return build(ranks, microbatches)
