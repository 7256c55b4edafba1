"""The optimizer's step on a whole vector."""

import numpy as np
import pytest

from psgd.optim import rules
from psgd.optim.optimizer import Optimizer, OptimizerOptions


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
