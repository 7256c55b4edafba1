"""What came of many runs, by strategy: medians, and what was wrong."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from psgd.launch.bench.faults.soak import Outcome

SLOWER = 1.2
"""A run with deaths takes at most so many times what it would have taken undisturbed, at the median."""


def totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All numbers of these runs."""
    told = [seconds for each in outcomes for seconds in each.detected_s.values()]
    return {
        "runs": len(outcomes),
        "kills": sum(len(each.killed) for each in outcomes),
        "wrong": sum(bool(each.wrong) for each in outcomes),
        "acknowledged": _sum(each.acknowledged for each in outcomes),
        "lost": _sum(each.lost for each in outcomes),
        "detected_s": _middle(told),
        "paused_s": _middle(seconds for each in outcomes for seconds in each.paused_s.values()),
        "slower": _middle(each.slower for each in outcomes if each.slower is not None),
    }


def by_strategy(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """The same of each strategy and kind of rank, in the order of their first runs."""
    names = dict.fromkeys((each.strategy, each.kind) for each in outcomes)
    return {
        f"{strategy}, {kind}": totals([each for each in outcomes if (each.strategy, each.kind) == (strategy, kind)])
        for strategy, kind in names
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """As text, a line for each."""
    width = max(map(len, rows))
    lines = [
        f"{'':{width}}  runs  kills  wrong  lost pushes of acknowledged  told after: median   most  "
        "paused: median   most  time x: median    most"
    ]
    for name, row in rows.items():
        told, paused, slower = (_two(row[key]) for key in ("detected_s", "paused_s", "slower"))
        lost, acknowledged = ("-" if row[key] is None else str(row[key]) for key in ("lost", "acknowledged"))
        lines.append(
            f"{name:{width}}  {row['runs']:4}  {row['kills']:5}  {row['wrong']:5}  {lost:>11} {acknowledged:>15}"
            f"  {told[0]:>17} s {told[1]:>4} s  {paused[0]:>12} s {paused[1]:>4} s  {slower[0]:>14} {slower[1]:>6}"
        )
    return "\n".join(lines)


def _two(row: dict[str, float] | None) -> tuple[str, str]:
    return ("-", "-") if row is None else (f"{row['median']:.2f}", f"{row['max']:.2f}")


def _sum(values: Iterable[int | None]) -> int | None:
    """Of those that are known; None where none is, as of runs without servers."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


def _middle(values: Iterable[float]) -> dict[str, float] | None:
    found = list(values)
    return {"median": statistics.median(found), "max": max(found)} if found else None
