"""Steps that write no element that stays: the bits of the dense step, and nothing at all where the step is 0."""

import numpy as np
import pytest

from psgd.kernels import sparse_update, update

LONG = sparse_update.LONG_BYTES // 4 + 3 * sparse_update.MIXED + 5
LR, SCALE, FACTOR, ADAM = 0.1, 0.25, 0.9, (0.9, 0.999, 1e-8, 3)


def forms(nesterov=False):
    """Of each rule: arrays of state, the dense step and the sparse one."""
    return {
        "sgd": (0, lambda w, g: update.sgd(w, g, LR, SCALE, 0.0), lambda w, g: sparse_update.sgd(w, g, LR, SCALE)),
        "momentum": (
            1,
            lambda w, g, v: update.momentum(w, g, v, LR, SCALE, 0.0, FACTOR, nesterov),
            lambda w, g, v: sparse_update.momentum(w, g, v, LR, SCALE, FACTOR, nesterov),
        ),
        "adam": (
            2,
            lambda w, g, m, s: update.adam(w, g, m, s, LR, SCALE, 0.0, *ADAM),
            lambda w, g, m, s: sparse_update.adam(w, g, m, s, LR, SCALE, *ADAM),
        ),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rule", "nesterov"), [("sgd", False), ("momentum", False), ("momentum", True), ("adam", False)]
)
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("size", [1003, LONG])
def test_the_bits_of_the_dense_step(rule, nesterov, dtype, share, size):
    states, dense, sparse = forms(nesterov)[rule]
    rng = np.random.default_rng(5)
    made = [abs(rng.standard_normal(size)).astype(dtype) for _ in range(2 + states)]
    made[1][rng.random(size) >= share] = 0
    made[1][size // 3 : size // 2] = 0  # whole blocks
    for state in made[2:]:
        state[rng.random(size) < 0.5] = 0  # the step is 0 where gradient and state are
        state[size // 4 :] *= state[size // 4 :] if share == 1 else 0
    one, two = [[array.copy() for array in made] for _ in range(2)]
    dense(*one)
    sparse(*two)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("size", [100, LONG + 1])
@pytest.mark.parametrize("every", [1, 3])
def test_what_stays_is_not_touched(rule, size, every):
    """A number that is none would not survive an addition of 0, and neither would the sign of a 0 everywhere."""
    states, _, sparse = forms()[rule]
    quiet = np.array([0x7FF4_0000_0000_1234, 0x8000_0000_0000_0000], np.uint64).view(np.float64)
    w, grad = np.tile(quiet, size // 2), np.zeros(size)
    before = w.view(np.uint64).copy()
    moves = np.arange(size) % every == 1  # none where `every` is 1
    w[moves], grad[moves] = 1.0, 1.0
    sparse(w, grad, *np.zeros((states, size)))
    np.testing.assert_array_equal(w.view(np.uint64)[~moves], before[~moves])
    assert (w[moves] != 1).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_written(value):
    w = np.zeros(3)
    sparse_update.sgd(w, np.array([0.0, value, 0.0]), LR, SCALE)
    assert w[[0, 2]].tolist() == [0, 0] and not np.isfinite(w[1])
