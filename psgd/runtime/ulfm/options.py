"""Ranks that stand by, and what is held twice: how many, and when they join a run."""

import itertools
import math
from typing import NamedTuple

from psgd.runtime.option import Option, whole

REPLICAS = Option(
    int,
    0,
    "Number of further servers that hold each shard: with 1 the run goes on when a server dies.",
    (0, 1).__contains__,
    "0 or 1",
    metavar="0|1",
)
SPARES = whole(0, 0, "Number of idle ranks that take the places of ranks that die; with --checkpoint-dir.")


class Phase(NamedTuple):
    """A part of a run: until which fraction of the epochs how many workers train."""

    until: float
    workers: int


def phases(text: str | None) -> list[Phase]:
    """Those of `--grow`: `0.25:2,1:4`. None or a wrong text is none."""
    found: list[Phase] = []
    for part in (text or "").split(","):
        fraction, _, workers = part.strip().partition(":")
        try:
            found.append(Phase(float(fraction), int(workers)))
        except ValueError:
            return []
    ascending = all(a.until < b.until and a.workers < b.workers for a, b in itertools.pairwise(found))
    fits = ascending and found[0].until > 0 and found[0].workers > 0 and found[-1].until == 1
    return found if fits and len(found) > 1 else []


def part(grow: str, workers: int) -> Phase:
    """The part of a run that so many workers are for: of fewer, since some have died, the first that has as many."""
    found = phases(grow)
    return next((phase for phase in found if phase.workers >= workers), found[-1])


def standing_by(spares: int, grow: str | None, parts: int) -> int:
    """How many idle ranks are started beside those of a run's first part, where a worker is so many ranks."""
    workers = [phase.workers for phase in phases(grow)] or [0]
    return spares + parts * (workers[-1] - workers[0])


def last_epoch(grow: str | None, workers: int, epochs: int) -> int:
    """After how many epochs more workers join so many; 0 is never."""
    if grow is None:
        return 0
    end = max(1, math.ceil(part(grow, workers).until * epochs - 1e-9))
    return end if end < epochs else 0


GROW = Option(
    str,
    None,
    "Number of workers in parts of the run, each until a fraction of the epochs; with --checkpoint-dir.",
    phases,
    "FRACTION:WORKERS, both ascending, several with commas between, the last fraction 1, such as 0.25:2,1:4",
    metavar="FRACTION:WORKERS,...",
)
