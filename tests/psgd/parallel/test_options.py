import pytest

from psgd.parallel import options
from psgd.parallel.schedules.catalog import SCHEDULES


def test_cuts_as_text():
    assert options.layers("3,5") == (3, 5)
    assert options.layers("7") == (7,)
    assert options.layers("auto") is None
    with pytest.raises(ValueError, match="invalid literal"):
        options.layers("3,")


def test_schedules_of_a_run_are_those_that_train_and_flush():
    named = set(options.PIPE_SCHEDULE.names)
    assert {"gpipe", "1f1b"} <= named
    assert {name for name in SCHEDULES if not SCHEDULES[name].trains or not SCHEDULES[name].flushes}.isdisjoint(named)
