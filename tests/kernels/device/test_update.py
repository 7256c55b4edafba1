"""Optimizer steps on a GPU have the host's bits, also where a fused product and sum differs from a rounded product."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels import update

pytestmark = pytest.mark.gpu
LR, SCALE = 0.05, 0.5


def vectors(n, count, dtype, shift):
    """On the host and on the GPU, there at an address that is aligned or not."""
    xp = cupy()
    rng = np.random.default_rng(n + count)
    here = [(rng.standard_normal(n) * 10.0 ** rng.integers(-6, 4, n)).astype(dtype) for _ in range(count)]
    there = []
    for each in here:
        memory = xp.empty(n + shift, dtype)
        memory[shift:] = xp.asarray(each)
        there.append(memory[shift:])
    return here, there


def same(here, there):
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.get().view(np.uint8))


@pytest.mark.parametrize("rule", ["sgd", "momentum", "nesterov"])
@pytest.mark.parametrize("decay", [0.0, 5e-4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "shift"), [(1, 0), (4099, 0), (4099, 1), (100_003, 3)])
def test_steps_in_a_row(rule, decay, dtype, n, shift):
    here, there = vectors(n, 3, dtype, shift)
    for _ in range(5):
        for w, g, v in (here, there):
            if rule == "sgd":
                update.sgd(w, g, LR, SCALE, decay)
            else:
                update.momentum(w, g, v, LR, SCALE, decay, 0.9, rule == "nesterov")
        same(here, there)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_left_is_the_rounding_error_of_a_product(dtype):
    (w, g), _ = vectors(5001, 2, dtype, 0)
    w = (dtype(LR) * g).astype(dtype)  # w - lr g: 0 where the product is rounded before the sum
    xp = cupy()
    x, y = xp.asarray(w), xp.asarray(g)
    update.sgd(w, g, LR, 1.0, 0.0)
    update.sgd(x, y, LR, 1.0, 0.0)
    assert np.count_nonzero(w) > 1000
    same([w], [x])


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e-45, -0.0])
def test_values_that_are_no_plain_numbers(special):
    here, there = vectors(257, 3, np.float32, 0)
    here[1][::3] = special
    there[1][:] = cupy().asarray(here[1])
    for w, g, v in (here, there):
        update.momentum(w, g, v, LR, SCALE, 5e-4, 0.9, True)
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, other.get())
