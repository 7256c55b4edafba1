"""What is left to send comes back, and with other workers none of it is lost."""

import numpy as np
import pytest

from psgd.checkpoint.declared import restore_all, save
from psgd.compression import options
from psgd.compression.before_encoding import BeforeEncoding
from psgd.compression.residuals import kept
from psgd.kernels import codecs
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions

N = 500


def before_encoding(compression):
    return BeforeEncoding(compression, np.zeros(N), OptimizerOptions(rules.sgd(), schedules.constant(0.1)), 2)


def made(name, seed=None):
    compression = options.create(name, 0.05, 0.0, 0, rules.momentum(0.9))
    codec = compression.codec(N, "float64")
    before = before_encoding(compression)
    if seed is not None:
        rng = np.random.default_rng(seed)
        payload = np.empty(codec.max_nbytes(), np.uint8)
        for _ in range(3):
            codec.encode(rng.normal(size=N), payload)
        before.velocity[:] = rng.normal(size=before.velocity.size)
    return codec, before


@pytest.mark.parametrize("name", codecs.CODECS)
def test_the_same_worker_gets_all_back(name):
    codec, before = made(name, 1)
    state = save(kept(codec, before), 1)
    again, fresh = made(name)
    assert restore_all(kept(again, fresh), state, [state], 1) == []
    for key, array in codec.arrays().items():
        np.testing.assert_array_equal(again.arrays()[key], array)
    np.testing.assert_array_equal(fresh.velocity, before.velocity)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_of_others_the_first_has_the_sum_of_all_residuals(name):
    saved = [made(name, seed) for seed in (1, 2, 3)]
    states = [save(kept(*each), k) for k, each in enumerate(saved)]
    total = sum(codec.residual for codec, _ in saved)
    for k in (0, 1):
        codec, before = made(name)
        lines = restore_all(kept(codec, before), None, states, k)
        assert "residuals: worker 0 has the sum of all" in lines
        np.testing.assert_allclose(codec.residual, total if k == 0 else 0.0, rtol=1e-14)
        if before.velocity.size:
            np.testing.assert_allclose(before.velocity, sum(b.velocity for _, b in saved) / 3, rtol=1e-14)
            assert "momentum: each worker starts from the mean" in lines


def test_what_nobody_saved_begins_anew():
    codec, before = made("threshold")
    whole = save(kept(None, before_encoding(options.create("threshold", 0.05, 0.0, 0, rules.sgd()))), 0)
    assert whole.tensors == {}
    assert "momentum: begins anew" in restore_all(kept(codec, before)[:3], None, [whole], 0)
