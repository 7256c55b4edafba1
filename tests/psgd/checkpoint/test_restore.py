"""Arrays and facts put back from saved states; what does not fit is refused by name."""

import numpy as np
import pytest

from psgd.checkpoint import restore
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError


def state(start, **facts):
    return State({"params": np.arange(start, start + 3.0), "velocity": np.full(3, 2.0 * start)}, facts)


def test_arrays_come_back_in_place():
    array = np.zeros(3)
    restore.put_back({"params": array}, state(4))
    assert array.tolist() == [4, 5, 6]
    for wrong in (np.zeros(4), np.zeros(3, np.float32), np.zeros((3, 1))):
        with pytest.raises(CheckpointError, match=r"params: expected .* the checkpoint has float64 of shape \(3,\)"):
            restore.put_back({"params": wrong}, state(4))
    with pytest.raises(CheckpointError, match="no residual"):
        restore.put_back({"residual": array}, state(4))


def test_sums_and_means_are_of_those_that_have_it():
    states, array = [state(1), State({}, {}), state(5)], np.zeros(3)
    restore.total({"params": array}, states)
    assert array.tolist() == [6, 8, 10]
    assert restore.mean({"velocity": array}, states) and array.tolist() == [6, 6, 6]
    assert not restore.mean({"residual": array}, states) and array.tolist() == [6, 6, 6]
    assert restore.first({"params": array}, states[1:]) is states[2]
    with pytest.raises(CheckpointError, match="no residual"):
        restore.first({"residual": array}, states)


def test_facts():
    states = [state(1, version=3), state(2, version=5), state(3)]
    assert restore.common(states, "version") == 5
    with pytest.raises(CheckpointError, match="has no samples"):
        restore.common(states, "samples")
    for wrong in (-1, 1.5, True, "3", None, [3], 2**63):
        with pytest.raises(CheckpointError, match="version: expected a whole number of 0 or more, the checkpoint has"):
            restore.common([*states, state(4, version=wrong)], "version")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0**62, -(2.0**62)])
def test_counts_in_arrays(wrong):
    counts = np.array([[0.0, 3.0], [-1.0, 2.0**40]])
    restore.check_counts("lines", counts)
    counts[1, 0] = wrong
    with pytest.raises(CheckpointError, match="lines: expected counts"):
        restore.check_counts("lines", counts)
