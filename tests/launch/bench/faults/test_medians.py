"""Runs of killed ranks, summed up by strategy."""

import pytest

from psgd.launch.bench.faults.medians import by_strategy, table, totals
from psgd.launch.bench.faults.soak import Outcome

RUNS = [
    Outcome("sync", killed=[1, 2], detected_s={1: 0.5, 2: 0.1}, paused_s={1: 0.7}, slower=1.1, acknowledged=7, lost=0),
    Outcome("async", killed=[1], wrong=["it ended late"]),
    Outcome("sync", killed=[2], detected_s={2: 0.2}, paused_s={2: 0.4}, slower=1.3, acknowledged=5, lost=2),
    Outcome("sync", "spares", killed=[0]),
]


def test_numbers():
    assert totals(RUNS) == {
        **{"runs": 4, "kills": 5, "wrong": 1, "acknowledged": 12, "lost": 2},
        "paused_s": {"median": pytest.approx(0.55), "max": 0.7},
        "detected_s": {"median": 0.2, "max": 0.5},
        "slower": {"median": pytest.approx(1.2), "max": 1.3},
    }
    rows = by_strategy(RUNS)
    assert [(name, row["runs"], row["kills"], row["wrong"]) for name, row in rows.items()] == [
        ("sync, workers", 2, 3, 0),
        ("async, workers", 1, 1, 1),
        ("sync, spares", 1, 1, 0),
    ]
    assert rows["sync, spares"]["detected_s"] is None


def test_a_line_for_each():
    head, *lines = table(by_strategy(RUNS)).splitlines()
    assert len({len(line) for line in (head, *lines)}) == 1
    first = "sync, workers 2 3 0 2 12 0.20 s 0.50 s 0.55 s 0.70 s 1.20 1.30"
    assert lines[0].split() == first.split()
    assert lines[1].split()[5:7] == ["-", "-"]
    assert lines[2].split()[-2:] == ["-", "-"]
