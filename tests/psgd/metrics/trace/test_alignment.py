import numpy as np

from psgd.metrics.trace.alignment import Offset, aligned


def test_a_clock_that_is_too_fast_is_aligned_by_a_straight_line():
    """It is 2 s ahead at its 100, and gains 1 ms a second."""
    true = np.array([98.0, 148.0, 198.0])
    theirs = 100.0 + (true - 98.0) * 1.001
    first, last = Offset(100.0, 2.0, 0.0), Offset(theirs[2], theirs[2] - 198.0, 0.0)
    np.testing.assert_allclose(aligned(theirs, first, last), true, rtol=0, atol=1e-9)
    np.testing.assert_allclose(aligned(theirs, first), theirs - 2.0, rtol=0, atol=1e-9)
    np.testing.assert_allclose(aligned(theirs, first, first), theirs - 2.0, rtol=0, atol=1e-9)
