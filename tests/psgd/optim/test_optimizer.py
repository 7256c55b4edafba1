"""The optimizer's step on a whole vector."""

import numpy as np
import pytest

from psgd.kernels.exact_squares import squares
from psgd.optim import rules
from psgd.optim.optimizer import Optimizer, OptimizerOptions, clipped


def test_rate_scale_and_step_number_are_what_the_rule_gets():
    calls = []

    def update(params, grad, state, lr, scale, step):
        calls.append((params.size, grad.size, lr, scale, step))

    rule = rules.Rule("mine", lambda params: (), update)
    stepper = Optimizer(np.zeros(3), OptimizerOptions(rule, lambda samples: 1.0 / (1 + samples)))
    assert stepper.lr == 1.0
    calls.clear()
    stepper.take(np.ones(3), 0.25, 3)
    stepper.take(np.ones(3), 0.5, 7)
    assert calls == [(3, 3, 0.25, 0.25, 1), (3, 3, 0.125, 0.5, 2)]
    assert (stepper.version, stepper.lr) == (2, 0.125)


@pytest.mark.parametrize(("clip", "length"), [(0.0, 5.0), (6.0, 5.0), (5.0, 5.0), (2.0, 2.0)])
def test_the_scaled_gradient_is_clipped(clip, length):
    params, grad = np.zeros(2), np.array([6.0, -8.0])
    Optimizer(params, OptimizerOptions(rules.sgd(), lambda samples: 0.5, clip)).take(grad, 0.5, 0)
    np.testing.assert_allclose(params, -0.5 * length * np.array([0.6, -0.8]), rtol=1e-15)
    np.testing.assert_array_equal(grad, [6.0, -8.0])


def test_shards_clip_by_the_norm_over_all_of_them():
    """Two halves of (6, -8), each with the other's sum of squares, take the whole vector's step."""
    options = OptimizerOptions(rules.sgd(), lambda samples: 0.5, clip_norm=2.0)
    whole, grad = np.zeros(2), np.array([6.0, -8.0])
    Optimizer(whole, options).take(grad, 0.5, 0)
    for part, other in ((slice(0, 1), 8.0), (slice(1, 2), 6.0)):
        params = np.zeros(1)
        shard = Optimizer(params, options, lambda mine, other=other: mine + squares(np.full(1, other)))
        scale = shard.clipped(grad[part], 0.5)
        shard.begin(0)
        shard.update(params, grad[part], shard.state, shard.lr, scale, shard.version)
        np.testing.assert_array_equal(params, whole[part])


def test_a_step_by_segments_has_the_bits_of_one_on_the_whole():
    options = OptimizerOptions(rules.adam(), lambda samples: 1.0 / (1 + samples))
    rng = np.random.default_rng(0)
    start, parts = rng.normal(size=10), [slice(0, 4), slice(4, 8), slice(8, 10)]
    one, other = Optimizer(start.copy(), options), Optimizer(start.copy(), options)
    for step in range(3):
        grad = rng.normal(size=10)
        one.take(grad, 0.25, 8 * step)
        other.begin(8 * step)
        for part in parts:
            state = tuple(array[part] for array in other.state)
            other.update(other.params[part], grad[part], state, other.lr, 0.25, other.version)
    np.testing.assert_array_equal(one.params, other.params)


@pytest.mark.parametrize(("scale", "total", "largest", "expected"), [(1.0, 25.0, 5.0, 1.0), (1.0, 25.0, 1.0, 0.2)])
def test_clipped(scale, total, largest, expected):
    assert clipped(scale, total, largest) == expected
    assert clipped(2 * scale, total, 2 * largest) == 2 * expected
