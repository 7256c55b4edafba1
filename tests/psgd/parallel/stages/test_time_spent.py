"""Shares of a bubble."""

from psgd.parallel.stages.time_spent import Counters


def test_share_and_clear():
    counters = Counters()
    assert counters.bubble_share == 0.0
    counters.compute_s, counters.bubble_s, counters.gradients, counters.in_flight_max = 3.0, 1.0, 2, 4
    assert counters.bubble_share == 0.25
    counters.clear()
    assert counters == Counters()
