"""`psgd trace`: what each rank of a traced run spent its time on; merges what an aborted run has left."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from psgd.kernels.errors import DataError
from psgd.metrics.trace import chrome

_FIRST = ("compute", "gradient", "evaluate", "push", "wait", "pull", "all-reduce", "apply")


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
    path = Path(file)
    if not merge_left(path) and not path.exists():
        raise DataError(f"trace {path}: expected a file of psgd train --trace, or what an aborted run left beside it")
    click.echo("\n".join(table(times(read(path)))))


def merge_left(path: Path) -> int:
    """Merges what the ranks of an aborted run have left; returns of how many ranks there was something."""
    try:
        return chrome.merge_parts(path)
    except OSError as error:
        raise DataError(f"trace {path}: what an aborted run left cannot be merged: {error.strerror}") from None


def read(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace, compressed or not.

    Raises:
        DataError: it is none.
    """
    try:
        content = path.read_bytes()
        events = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)["traceEvents"]
        if not all(isinstance(event, dict) and "ph" in event for event in events):
            raise ValueError("an event without ph")
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"trace {path}: expected a Chrome trace of psgd train --trace: {reason}") from None
    found: list[dict[str, Any]] = events
    return found


def times(events: list[dict[str, Any]]) -> list[RankTime]:
    """Each rank's time by kind, in rank order."""
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)  # in whole nanoseconds, as they were written
    for event in events:
        if event["ph"] == "X" and event["tid"] == 0:
            start = round(1000 * event["ts"])
            spans[event["pid"]].append((start, start + round(1000 * event["dur"]), event["name"]))
    found = []
    for rank in sorted(names):
        mine = sorted(spans[rank], key=lambda span: (span[0], -span[1]))
        start = mine[0][0] if mine else 0
        stop = max((span[1] for span in mine), default=0)
        found.append(RankTime(names[rank], start / 1e9, stop / 1e9, len(mine), _alone(mine)))
    return found


def _alone(spans: list[tuple[int, int, str]]) -> dict[str, float]:
    """Seconds by kind, of each span without those inside it. Spans nest: an outer one comes before an inner one."""
    seconds: dict[str, float] = defaultdict(float)
    outer: list[tuple[int, str]] = []
    for start, stop, kind in spans:
        while outer and outer[-1][0] <= start:
            outer.pop()
        seconds[kind] += (stop - start) / 1e9
        if outer:
            seconds[outer[-1][1]] -= (stop - start) / 1e9
        outer.append((stop, kind))
    return dict(seconds)


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
