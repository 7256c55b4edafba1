import math

import pytest

from psgd.kernels.errors import UsageError
from psgd.optim import staleness


def test_factors():
    assert staleness.create("none") is None
    inverse, exponential = staleness.create("inverse"), staleness.create("exponential")
    assert [inverse(tau) for tau in (0, 1, 2, 8)] == [1, 1, 0.5, 0.125]
    assert [exponential(tau) for tau in (0, 10, 20)] == [1, math.exp(-1), math.exp(-2)]


def test_no_such_factor():
    with pytest.raises(UsageError, match="expected one of none, inverse, exponential, got 'linear'"):
        staleness.create("linear")
