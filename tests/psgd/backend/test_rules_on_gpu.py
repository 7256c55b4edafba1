"""A server's update rule with its arithmetic on the GPU has the host's bits."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.optim import rules

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_are_the_hosts(name, dtype):
    cupy()
    from psgd.backend import rules_on_gpu

    host = rules.create(name, weight_decay=0.01)
    device = rules_on_gpu.on_device(host)
    assert (device.name, device.factor, device.weight_decay) == (host.name, host.factor, host.weight_decay)
    rng = np.random.default_rng(2)
    one = rng.normal(size=1003).astype(dtype)
    two = one.copy()
    state, there = host.init(one), device.init(two)
    for step in range(1, 6):
        grad = rng.normal(size=1003).astype(dtype)
        host.update(one, grad, state, 0.1, 0.5, step)
        device.update(two, grad, there, 0.1, 0.5, step)
        np.testing.assert_array_equal(one, two)
