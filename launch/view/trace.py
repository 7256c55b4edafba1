"""`psgd trace`: what each rank of a traced run spent its time on; merges what an aborted run has left."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from psgd.kernels.errors import DataError

if TYPE_CHECKING:
    from psgd.metrics.trace.self_time import Segment

_FIRST = ("compute", "gradient", "evaluate", "F", "B", "X", "W", "U", "push", "wait", "pull", "all-reduce", "apply")


class RankTime(NamedTuple):
    """One rank's time.

    Attributes:
        name: of the rank, with its role and host.
        start, stop: of its first and last event, in seconds.
        events: how many there are.
        seconds: by kind of span, without the spans inside it; those of its main thread.
    """

    name: str
    start: float
    stop: float
    events: int
    seconds: dict[str, float]


@click.command()
@click.argument("file", metavar="FILE")
def trace(file: str) -> None:
    """Show what each rank did, from the file of psgd train --trace.

    Of an aborted run, first merges what its ranks have left beside FILE.
    """
    from psgd.metrics.trace import chrome

    path = Path(file)
    if not merge_left(path) and not path.exists():
        raise DataError(f"trace {path}: expected a file of psgd train --trace, or what an aborted run left beside it")
    click.echo("\n".join(table(times(chrome.read(path)))))


def merge_left(path: Path) -> int:
    """Merges what the ranks of an aborted run have left; returns of how many ranks there was something."""
    from psgd.metrics.trace import chrome

    try:
        return chrome.merge_parts(path)
    except OSError as error:
        raise DataError(f"trace {path}: what an aborted run left cannot be merged: {error.strerror}") from None


def times(found: "list[tuple[str, list[Segment]]]") -> list[RankTime]:
    """Each rank's time by kind.

    Args:
        found: as `psgd.metrics.trace.chrome.read` gives it.
    """
    from psgd.metrics.trace.self_time import segments

    ranks = []
    for name, spans in found:
        seconds: dict[str, float] = defaultdict(float)
        for start, stop, kind in segments(spans):
            seconds[kind] += (stop - start) / 1e9
        start, stop = min((span[0] for span in spans), default=0), max((span[1] for span in spans), default=0)
        ranks.append(RankTime(name, start / 1e9, stop / 1e9, len(spans), dict(seconds)))
    return ranks


def table(found: list[RankTime]) -> list[str]:
    """Aligned lines: for each rank its seconds, and the share of each kind."""
    kinds = {kind for rank in found for kind in rank.seconds}
    columns = [kind for kind in _FIRST if kind in kinds] + sorted(kinds - set(_FIRST))
    rows = [["", "seconds", "events", *columns]]
    for rank in found:
        whole = rank.stop - rank.start
        shares = [f"{100 * rank.seconds.get(kind, 0.0) / whole:.0f} %" if whole > 0 else "-" for kind in columns]
        rows.append([rank.name, f"{whole:.3f}", f"{rank.events:,}", *shares])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
