"""The schedules by name. Loads none of them until it is asked for one, and no NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from psgd.kernels.errors import UsageError
from psgd.parallel.schedules.schedule import Schedule


@dataclass(frozen=True)
class ScheduleEntry:
    """What is known of a schedule before its module is imported.

    Attributes:
        module: has the function.
        function: makes it from ranks and microbatches.
        chunks: it also takes `chunks`, of each rank.
        trains: it has backward passes.
        flushes: as in `Schedule`. Where false it also takes `every`, the microbatches of one step.
    """

    module: str
    function: str = "build"
    chunks: bool = False
    trains: bool = True
    flushes: bool = True

    def least_every(self, ranks: int) -> int:
        """Of a schedule that does not flush: the fewest microbatches that a step may have."""
        return 1 if self.function == "build" else ranks


SCHEDULES: dict[str, ScheduleEntry] = {
    "gpipe": ScheduleEntry("psgd.parallel.schedules.gpipe"),
    "1f1b": ScheduleEntry("psgd.parallel.schedules.one_f_one_b"),
    "interleaved": ScheduleEntry("psgd.parallel.schedules.interleaved", chunks=True),
    "zero-bubble": ScheduleEntry("psgd.parallel.schedules.zero_bubble"),
    "pipedream": ScheduleEntry("psgd.parallel.schedules.pipedream", flushes=False),
    "pipedream-2bw": ScheduleEntry("psgd.parallel.schedules.pipedream", "build_two_versions", flushes=False),
    "inference": ScheduleEntry("psgd.parallel.schedules.inference", trains=False),
}
NAMES = tuple(SCHEDULES)


@lru_cache(maxsize=64)
def make(name: str, ranks: int, microbatches: int, chunks: int = 1, every: int = 0) -> Schedule:
    """Makes a schedule, or returns the one made before.

    Args:
        name: one of `NAMES`.
        ranks: of the pipeline, 1 or more.
        microbatches: of one batch, or of a run that does not flush; 1 or more. Fewer than ranks are fine.
        chunks: stages of each rank. Only interleaved schedules have more than 1.
        every: microbatches of one step, of schedules that do not flush; 0: with stashed weights 1, with two versions
            as many as ranks.

    Raises:
        UsageError: a name, number or combination that there is not.
    """
    if name not in SCHEDULES:
        raise UsageError(f"schedule: expected one of {', '.join(NAMES)}, got {name!r}")
    for what, number in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise UsageError(f"schedule: {what}: expected 1 or more, got {number}")
    entry = SCHEDULES[name]
    build: Callable[..., Schedule] = getattr(import_module(entry.module), entry.function)
    if chunks > 1 and not entry.chunks:
        able = " or ".join(each for each, other in SCHEDULES.items() if other.chunks)
        raise UsageError(f"schedule {name}: expected 1 chunk a rank, got {chunks}; {able} takes more")
    if every and entry.flushes:
        able = " and ".join(each for each, other in SCHEDULES.items() if not other.flushes)
        raise UsageError(f"schedule {name}: a step has all microbatches; every={every} goes with {able}")
    if not entry.flushes:
        return build(ranks, microbatches, every or entry.least_every(ranks))
    return build(ranks, microbatches, chunks) if entry.chunks else build(ranks, microbatches)
