import math

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.runtime.validation import real_number, whole_number


@pytest.mark.parametrize("value", [0, 3, np.int64(3), np.uint8(7)])
def test_whole_numbers(value):
    assert whole_number("n", value) == int(value)
    assert type(whole_number("n", value)) is int


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, [1]])
def test_not_whole_numbers(value):
    with pytest.raises(UsageError, match="n: expected a whole number"):
        whole_number("n", value)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.25), np.int32(2)])
def test_real_numbers(value):
    assert real_number("x", value) == float(value)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", None, True])
def test_not_real_numbers(value):
    with pytest.raises(UsageError, match="x: expected a number 0 or more, got"):
        real_number("x", value)


def test_bounds():
    with pytest.raises(UsageError, match="x: expected a number more than 0, got 0"):
        real_number("x", 0, above=0.0)
    with pytest.raises(UsageError, match="x: expected a number 0 or more and less than 1, got 1"):
        real_number("x", 1, below=1.0)
