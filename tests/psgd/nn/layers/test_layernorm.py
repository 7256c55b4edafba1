"""Layer normalization: what it makes of rows, and a summand that large means do not spoil."""

import numpy as np
from harness.layers import Run

from psgd.nn.layers.layernorm import LayerNorm


def test_rows_have_mean_0_and_variance_1():
    run = Run(LayerNorm(1e-12), (5, 64))
    run.params = np.ones(64), np.zeros(64)
    y = run.forward()
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-14)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-10)


def test_a_large_mean_costs_no_digits_of_the_deviation():
    run = Run(LayerNorm(), (5, 64), dtype=np.float32)
    rounded = np.round(run.x * 64) / 64
    run.x = rounded.astype(np.float32)
    near = run.forward()
    run.x = (rounded + 4096).astype(np.float32)
    np.testing.assert_allclose(run.forward(), near, rtol=0, atol=2e-3)


def test_a_constant_row_is_the_summand():
    run = Run(LayerNorm(), (5, 7))
    run.x[:] = 3
    np.testing.assert_array_equal(run.forward(), np.broadcast_to(run.params[1], (3, 5, 7)))
