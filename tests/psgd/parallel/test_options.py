import pytest

from psgd.parallel import options
from psgd.parallel.schedules.catalog import SCHEDULES


def test_cuts_as_text():
    assert options.layers("3,5") == (3, 5)
    assert options.layers("7") == (7,)
    assert options.layers("auto") is None
    with pytest.raises(ValueError, match="invalid literal"):
        options.layers("3,")


def test_schedules_of_a_run_are_those_that_train():
    assert set(options.PIPE_SCHEDULE.names) == {name for name in SCHEDULES if SCHEDULES[name].trains}


@pytest.mark.parametrize(("schedule", "expected"), [("1f1b", 12), ("pipedream", 1), ("pipedream-2bw", 12)])
def test_microbatches_where_none_are_asked_for(schedule, expected):
    assert options.microbatches_of(schedule, 3) == expected
    assert options.microbatches_of(schedule, 1) == 1
