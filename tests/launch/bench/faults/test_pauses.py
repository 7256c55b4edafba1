"""How long training stands still after a kill, from a log."""

import pytest

from psgd.launch.bench.faults.pauses import pauses_s


def progress(time):
    return {"event": "progress", "time": time, "samples": 1}


def lost(time, rank):
    return {"event": "lost", "time": time, "rank": rank}


def test_it_ends_with_the_first_progress_behind_the_death():
    # Rank 1 is killed at 1.0; what was under way is applied at 1.1, and the others go on at 1.5, 2.0 and later.
    events = [progress(0.9), progress(1.1), lost(1.25, 1), progress(1.5), progress(2.0), lost(3.0, 0)]
    assert pauses_s(events, {1: 0.25, 0: 0.1}) == {1: pytest.approx(0.5)}
    assert pauses_s([*events, progress(3.5)], {0: 0.1}) == {0: pytest.approx(0.6)}


def test_two_deaths_may_be_one_pause():
    events = [lost(1.0, 1), lost(1.2, 2), progress(1.4)]
    assert pauses_s(events, {1: 0.1, 2: 0.0}) == {1: pytest.approx(0.5), 2: pytest.approx(0.2)}
