"""A server's rule with its arithmetic on the GPU: the bits of the host's."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.optim import rules
from psgd.optim.catalog import RULES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", RULES)
def test_the_bits_are_those_of_the_host(name):
    cupy()
    from psgd.backend.rules_on_gpu import on_device

    rule = rules.create(name, 0.9, 0.01)
    other = on_device(rule)
    assert (other.name, other.factor, other.weight_decay) == (rule.name, rule.factor, rule.weight_decay)
    random = np.random.default_rng(0)
    here = random.standard_normal(1003).astype(np.float32)
    there = here.copy()
    state, their_state = rule.init(here), other.init(there)
    for step in range(1, 4):
        grad = random.standard_normal(1003).astype(np.float32)
        rule.update(here, grad, state, 0.1, 0.5, step)
        other.update(there, grad, their_state, 0.1, 0.5, step)
        assert np.array_equal(here, there)
