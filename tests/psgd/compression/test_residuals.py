"""What another number of workers gets of what codecs and momentum had kept."""

import numpy as np
import pytest

from psgd.checkpoint import declared
from psgd.checkpoint.state import State
from psgd.compression import options, residuals
from psgd.compression.before_encoding import BeforeEncoding
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions

N = 40


def made(name, seed, factor=1.0):
    """A codec that has something left to send, momentum, and how both are declared."""
    compression = options.create(name, 0.1, 0, 0, rules.momentum(0.5))
    codec, before = (
        compression.codec(N, np.float64),
        BeforeEncoding(
            compression, np.zeros(N, np.float64), OptimizerOptions(rules.sgd(), schedules.constant(0.5), 0.0), 1
        ),
    )
    if seed:
        update = np.random.default_rng(seed).normal(size=N)
        before.velocity[:] = update[: before.velocity.size]
        codec.encode(update, np.empty(codec.max_nbytes(), np.uint8))
    return codec, before, residuals.kept(codec, before, factor)


@pytest.mark.parametrize("name", ["threshold", "onebit", "topk"])
def test_nothing_that_is_left_to_send_is_lost(name):
    old = [made(name, seed) for seed in (1, 2, 3)]
    states = [declared.save(items, worker) for worker, (_, _, items) in enumerate(old)]
    new = [made(name, 0, factor=0.5) for _ in range(2)]
    lines = [declared.restore_all(items, None, states, worker) for worker, (_, _, items) in enumerate(new)]
    expected = ["residuals: worker 0 has the sum of all", "momentum: each worker begins with the mean"]
    assert lines == [expected, expected]
    np.testing.assert_allclose(new[0][0].residual, sum(codec.residual for codec, *_ in old), atol=1e-15)
    assert not new[1][0].residual.any()
    if name == "topk":
        mean = sum(codec.velocity for codec, *_ in old) / 3
        np.testing.assert_allclose(new[1][0].velocity, 0.5 * mean, atol=1e-15)
    else:
        mean = sum(before.velocity for _, before, _ in old) / 3
        np.testing.assert_allclose(new[1][1].velocity, mean, atol=1e-15)
    for key, array in new[1][0].arrays().items():
        if array.size == 1:
            np.testing.assert_array_equal(array, states[0].tensors[f"codec.{key}"])


@pytest.mark.parametrize("name", ["threshold", "onebit", "topk"])
def test_the_same_worker_gets_its_own_back(name):
    codec, before, items = made(name, 4)
    state = declared.save(items, 1)
    again, anew, items = made(name, 0)
    assert declared.restore_all(items, state, [state], 1) == []
    for key, array in codec.arrays().items():
        np.testing.assert_array_equal(again.arrays()[key], array)
    np.testing.assert_array_equal(anew.velocity, before.velocity)


def test_updates_sent_whole_keep_momentum_alone():
    _, before, _ = made("threshold", 5)
    assert set(declared.save(residuals.kept(None, before), 0).tensors) == {"velocity"}


def test_what_nobody_has_saved_begins_anew():
    _, before, items = made("threshold", 0)
    assert declared.restore_all(items[:3], None, [State({"params": np.zeros(N)})], 0) == ["momentum: begins anew"]
    assert not before.velocity.any()
