"""Clipping, weight decay and momentum come before encoding, on each worker."""

import numpy as np
import pytest

from psgd.compression import options
from psgd.compression.before_encoding import BeforeEncoding
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions


def optimizer(**options):
    return OptimizerOptions(rules.sgd(), schedules.constant(0.5), **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_before_encoding(dtype, factor, decay):
    """v = m v + (clipped g + decay w), rate v, clipped to clip / sqrt(workers)."""
    made = options.create("threshold", 1e-2, 0, 0, rules.momentum(factor, decay))
    before = BeforeEncoding(made, np.zeros(1003, dtype), optimizer(clip_norm=6.0), workers=4)
    rng, out, kind = np.random.default_rng(3), np.empty(1003, dtype), dtype
    velocity = np.zeros(1003, dtype)
    for step in range(4):
        grads, params = rng.normal(size=(2, 1003)).astype(dtype) * kind(0.02 if step == 1 else 1.0)
        kept = grads.copy()
        before(out, grads, params, -0.25)
        norm = np.sqrt(np.sum(grads.astype(np.float64) ** 2))
        scaled = kind(3.0 / norm if norm > 3.0 else 1.0) * grads
        velocity = kind(factor) * velocity + (scaled + kind(decay) * params)
        np.testing.assert_allclose(out, kind(-0.25) * velocity, rtol=1e-6)
        assert np.array_equal(grads, kept)
    assert (norm > 3.0) and before.velocity.size == (1003 if factor else 0)


def test_the_rate_goes_by_progress_and_is_multiplied_for_sums():
    made = options.create("threshold", 1e-2, 0, 0, rules.sgd())
    run = OptimizerOptions(rules.sgd(), schedules.step(0.5, every=10, factor=0.5), reduction_factor=3.0)
    before = BeforeEncoding(made, np.zeros(4), run, workers=3)
    assert before.lr == 0.5
    assert (before.begin(9), before.lr) == (-1.5, 0.5)
    assert (before.begin(10), before.lr) == (-0.75, 0.25)
