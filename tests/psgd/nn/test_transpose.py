"""Tokens and features swapped, contiguous, and back again."""

import numpy as np
from harness.layers import Run

from psgd.nn.transpose import Transpose


def test_there_and_back():
    run = Run(Transpose(), (5, 3))
    y = run.layer.forward(run.state, run.x, ())
    np.testing.assert_array_equal(y, run.x.transpose(0, 2, 1))
    assert y.flags.c_contiguous and not np.shares_memory(y, run.x)
    np.testing.assert_array_equal(run.layer.backward(run.state, y.copy(), (), ()), run.x)
