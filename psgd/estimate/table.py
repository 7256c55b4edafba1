"""An estimate as text."""

from collections.abc import Sequence
from itertools import groupby

from psgd.estimate.rank_memory import Estimate


def lines(ranks: Sequence[Estimate]) -> list[str]:
    """A table for each kind of rank, the largest rows first; one for neighbours that need the same."""
    said: list[str] = []
    for _, alike in groupby(ranks, lambda each: (each.rows, each.device)):
        same = list(alike)
        each = same[0]
        roles = "; ".join(other.role for other in same)
        said += ["", f"{roles}, {sum(other.ranks for other in same)} of them, on {each.device}"]
        rows = sorted(each.rows.items(), key=lambda row: -row[1])
        said += [f"  {name:<34} {text(number):>10}" for name, number in (*rows, ("sum", each.total))]
    return said[1:]


def text(nbytes: float) -> str:
    """Bytes as GB, MB or kB of 1000, three digits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}" if nbytes < 999.5 * factor else f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} bytes"
