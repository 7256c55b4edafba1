"""A state says whether its weights are numbers."""

import numpy as np
import pytest

from psgd.checkpoint.state import State


@pytest.mark.parametrize("name", ["params", "centre", "pulled"])
def test_weights_are_looked_at_and_nothing_else(name):
    assert State({name: np.ones(3), "extra.free": np.array([np.nan])}).finite
    assert not State({name: np.array([1.0, np.inf])}).finite
    assert State({name: np.arange(3)}).finite and State().finite
