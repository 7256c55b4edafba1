"""Ranks that stand by: how many, and when they join a run."""

import itertools
from typing import NamedTuple

from psgd.runtime.option import Option, whole

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


GROW = Option(
    str,
    None,
    "Number of workers in parts of the run, each until a fraction of the epochs; with --checkpoint-dir.",
    phases,
    "FRACTION:WORKERS, both ascending, several with commas between, the last fraction 1, such as 0.25:2,1:4",
    metavar="FRACTION:WORKERS,...",
)
