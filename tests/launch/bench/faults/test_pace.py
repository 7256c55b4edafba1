"""The time of a run without its deaths, from logs whose rates are known."""

import pytest

from psgd.launch.bench.faults.pace import undisturbed_s


def log(points, lost=(), end=None, workers=3):
    """Progress at (time, samples), losses at (time, rank, workers left)."""
    events = [{"event": "start", "workers": workers}]
    events += [{"event": "progress", "time": time, "samples": samples} for time, samples in points]
    events += [{"event": "lost", "time": time, "rank": rank, "workers_left": left} for time, rank, left in lost]
    return [*sorted(events, key=lambda e: e.get("time", 0)), {"event": "end", "seconds": end[0], "samples": end[1]}]


def steady(begin, end, rate, samples):
    return [(begin + k / 10, samples + rate * k // 10) for k in range(round((end - begin) * 10) + 1)]


def test_without_a_loss_it_is_the_time_that_it_took():
    assert undisturbed_s(log(steady(0.5, 4, 300, 0), end=(4.5, 1200)), {}) == pytest.approx(4.5)


def test_a_pause_counts_as_the_samples_in_it_at_the_rate_behind_it():
    # 300 a second until 2 s; the kill at 2 s is told of at 5 s, and 200 a second follow, until 10 s
    points = [*steady(0, 2, 300, 0), *steady(5, 10, 200, 700)]
    found = undisturbed_s(log(points, [(5, 1, 2)], (10, 1700)), {1: 3.0})
    assert found == pytest.approx(2 + 100 / 200 + 5)
    # what was computed while nobody knew of it counts at that rate, too
    points = [*steady(0, 2, 300, 0), (3, 640), (4, 680), *steady(5, 10, 200, 700)]
    assert undisturbed_s(log(points, [(5, 1, 2)], (10, 1700)), {1: 3.0}) == pytest.approx(found)


def test_deaths_together_are_one_gap_and_a_short_part_has_the_rate_of_its_neighbour_by_workers():
    points = [*steady(0, 2, 300, 0), *steady(4, 8, 100, 600)]
    assert undisturbed_s(log(points, [(3, 1, 2), (3.5, 2, 1)], (8, 1000)), {1: 0.5, 2: 1.2}) == pytest.approx(2 + 4)
    points = [*steady(0, 2, 300, 0), (3, 650), (3.1, 660)]
    found = undisturbed_s(log(points, [(3, 1, 1)], (3.1, 660)), {1: 0.9})
    assert found == pytest.approx(2 + 50 / 100 + 0.1)


def test_without_a_rate_nothing_is_known():
    assert undisturbed_s(log([(0.1, 10)], end=(0.15, 20)), {}) is None
    assert undisturbed_s([{"event": "start", "workers": 3}], {}) is None
