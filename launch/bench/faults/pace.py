"""How long a run would have taken undisturbed: its samples at the rates that its log shows between its losses."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_LEAST_S = 0.2  # of a rate that is measured
Event = Mapping[str, Any]


class Gap(NamedTuple):
    """A time in which the run was disturbed, and how many workers trained behind it.

    Attributes:
        begin, end: seconds of the run's clock: from the kill until the log told of it.
        workers: that were left.
    """

    begin: float
    end: float
    workers: int


def undisturbed_s(events: Sequence[Event], took_s: Mapping[int, float]) -> float | None:
    """Seconds that the run would have taken with those that were there, had nobody had to notice and to regroup.

    Between two losses all counts as it was. What was computed in between, from the last progress before a kill to the
    first behind the log's line of it, counts at the rate of those that were left.

    Args:
        events: of the log.
        took_s: of each rank that was killed, how long it took until the log told of it.

    Returns:
        None where the log has no rate, as that of a run that was too short.
    """
    ends = [event for event in events if event["event"] == "end"]
    starts = [event for event in events if event["event"] == "start"]
    if not ends or not starts:
        return None
    points = [(event["time"], event["samples"]) for event in events if event["event"] == "progress"]
    points.append((ends[-1]["seconds"], ends[-1]["samples"]))
    gaps = _gaps(events, took_s)
    parts: list[list[tuple[float, int]]] = [[] for _ in range(len(gaps) + 1)]
    for time, samples in points:
        place = sum(time >= gap.end for gap in gaps)
        if place == len(gaps) or time <= gaps[place].begin:
            parts[place].append((time, samples))
    workers = [starts[0]["workers"], *(gap.workers for gap in gaps)]
    rates = _rates(parts, workers)
    if rates is None:
        return None
    total, last = 0.0, (0.0, 0)
    for place, part in enumerate(parts):
        if not part:
            continue
        total += (part[0][1] - last[1]) / rates[place] if place else part[0][0]
        total += part[-1][0] - part[0][0]
        last = part[-1]
    return total


def _gaps(events: Sequence[Event], took_s: Mapping[int, float]) -> list[Gap]:
    """In order; those that overlap are one."""
    gaps: list[Gap] = []
    for event in events:
        if event["event"] == "lost":
            begin = event["time"] - took_s.get(event["rank"], 0.0)
            gap = Gap(begin, event["time"], event["workers_left"])
            if gaps and begin <= gaps[-1].end:
                gap = Gap(min(begin, gaps.pop().begin), gap.end, gap.workers)
            gaps.append(gap)
    return gaps


def _rates(parts: Sequence[Sequence[tuple[float, int]]], workers: Sequence[int]) -> list[float] | None:
    """Samples a second of each part; of one that is too short by the nearest one's, for each worker."""
    found: dict[int, float] = {}
    for place, part in enumerate(parts):
        if len(part) > 1 and part[-1][0] - part[0][0] >= _LEAST_S and part[-1][1] > part[0][1]:
            found[place] = (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0])
    if not found:
        return None
    rates = []
    for place in range(len(parts)):
        near = min(found, key=lambda other: abs(other - place))
        rates.append(found[near] * workers[place] / workers[near])
    return rates
