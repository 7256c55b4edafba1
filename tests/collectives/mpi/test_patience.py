"""A time limit, and a clock that jumps."""

from psgd.collectives.mpi.patience import Patience


def test_what_was_stopped_has_not_waited():
    clock = [100.0]
    patience = Patience(1.0, lambda: clock[0])
    for passed, over in ((0.0, False), (0.9, False), (30.0, False), (0.05, False), (0.2, True)):
        clock[0] += passed
        assert patience.over() is over, clock
