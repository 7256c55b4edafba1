"""Words for Python: what is stored at an address is loaded from it, and the words beside it stay."""

import numpy as np
import pytest

from psgd.kernels.memory import words


@pytest.mark.parametrize("value", [0, -1, 1 << 62, -(1 << 63)])
def test_a_word_is_written_alone(value):
    memory = np.array([11, 12, 13], np.int64)
    middle = memory.ctypes.data + 8
    assert words.load(middle) == 12
    words.store(middle, value)
    assert words.load(middle) == value
    assert memory.tolist() == [11, value, 13]
