"""On a GPU too each element counts, and nothing is allocated."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.finite import all_finite

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_element_counts(dtype):
    xp = cupy()
    values = xp.ones(300_007, dtype)
    values[0], values[1] = np.finfo(dtype).max, -np.finfo(dtype).tiny
    assert all_finite(values) and all_finite(values[:0])
    for wrong in (np.nan, np.inf, -np.inf):
        for at in (0, 5, 300_006):
            spoiled = values.copy()
            spoiled[at] = wrong
            assert not all_finite(spoiled)
