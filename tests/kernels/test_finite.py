"""Whether a vector holds numbers only."""

import numpy as np
import pytest

from psgd.kernels.finite import BLOCK, finite, part_finite


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_element_counts(dtype):
    values = np.linspace(-1, 1, 67, dtype=dtype)
    values[:2] = np.finfo(dtype).max, -np.finfo(dtype).tiny
    assert finite(values) and finite(values[:0])
    for wrong in (np.nan, np.inf, -np.inf):
        for at in range(values.size):
            spoiled = values.copy()
            spoiled[at] = wrong
            assert not finite(spoiled)


@pytest.mark.parametrize("size", [0, 1, BLOCK, 5 * BLOCK + 7])
def test_parts_in_turn_see_each_element_once(size):
    assert all(part_finite(np.ones(size), turn, 4) for turn in range(4))
    for at in range(0, size, 311):
        spoiled = np.ones(size)
        spoiled[at] = np.nan
        for first in (0, 9):
            seen = [part_finite(spoiled, turn, 4) for turn in range(first, first + 4)]
            assert seen.count(False) == 1 and not seen[(at // BLOCK - first) % 4]
