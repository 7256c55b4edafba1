"""Whether a vector holds numbers only."""

import numpy as np
import pytest

from psgd.kernels.finite import finite


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
