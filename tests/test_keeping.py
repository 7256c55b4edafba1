"""Arrays and facts put back from saved states; what does not fit is refused by name."""

import numpy as np
import pytest

from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.peers import keeping


def state(start, **facts):
    return State({"params": np.arange(start, start + 3.0), "velocity": np.full(3, 2.0 * start)}, facts)


def test_arrays_come_back_in_place():
    array = np.zeros(3)
    keeping.put_back({"params": array}, state(4))
    assert array.tolist() == [4, 5, 6]
    for wrong in (np.zeros(4), np.zeros(3, np.float32), np.zeros((3, 1))):
        with pytest.raises(CheckpointError, match=r"params: expected .* the checkpoint has float64 of shape \(3,\)"):
            keeping.put_back({"params": wrong}, state(4))
    with pytest.raises(CheckpointError, match="no residual"):
        keeping.put_back({"residual": array}, state(4))


def test_sums_and_means_are_of_those_that_have_it():
    states, array = [state(1), State({}, {}), state(5)], np.zeros(3)
    keeping.total({"params": array}, states)
    assert array.tolist() == [6, 8, 10]
    assert keeping.mean({"velocity": array}, states) and array.tolist() == [6, 6, 6]
    assert not keeping.mean({"residual": array}, states) and array.tolist() == [6, 6, 6]
    assert keeping.first({"params": array}, states[1:]) is states[2]
    with pytest.raises(CheckpointError, match="no residual"):
        keeping.first({"residual": array}, states)


def test_facts():
    states = [state(1, version=3), state(2, version=5), state(3)]
    assert keeping.common(states, "version") == 5 and keeping.fact(states[0], "version") == 3
    assert keeping.saved(states[0], states) == [states[0]] and keeping.saved(None, states) == states
    with pytest.raises(CheckpointError, match="does not say samples"):
        keeping.common(states, "samples")
    with pytest.raises(CheckpointError, match="does not say samples"):
        keeping.fact(states[0], "samples")
