"""GPipe's grid, as lectures draw it."""

import pytest

from psgd.parallel.schedules import gpipe


@pytest.mark.parametrize("rank", range(4))
def test_all_forward_then_all_backward_in_reverse(rank):
    schedule = gpipe.build(4, 4)
    assert " ".join(map(str, schedule.programs[rank])) == "F0 F1 F2 F3 B3 B2 B1 B0"
    assert schedule.gradient_order == "descending" and schedule.in_flight_limit == (4, 4, 4, 4)
