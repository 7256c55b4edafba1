import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.runtime.validation import whole_number


@pytest.mark.parametrize("value", [0, 3, np.int64(3), np.uint8(7)])
def test_whole_numbers(value):
    assert whole_number("n", value) == int(value)
    assert type(whole_number("n", value)) is int


@pytest.mark.parametrize("value", [-1, 1.0, "1", None, True, [1]])
def test_not_whole_numbers(value):
    with pytest.raises(UsageError, match="n: expected a whole number"):
        whole_number("n", value)
