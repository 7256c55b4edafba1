"""The sampled quantile against the exact one."""

import numpy as np
import pytest

from psgd.kernels.codecs import sampling

CLASSES = np.zeros(sampling.CLASSES, np.int32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("density", [1.0, 0.3, 0.01])
def test_about_the_share_asked_for_reaches_it(dtype, density):
    rng = np.random.default_rng(3)
    update, velocity, residual = (rng.normal(size=200_000).astype(dtype) for _ in range(3))
    edge = sampling.quantile(update, velocity, 0.5, residual, density, 11, CLASSES)
    share = np.mean(np.abs(residual + (dtype(0.5) * velocity + update)) >= edge)
    assert density / 1.2 <= share <= min(1.0, density * 1.2)


@pytest.mark.parametrize("n", [1, 2, 100])
def test_short_vectors_are_looked_at_whole(n):
    values = np.arange(1, n + 1, dtype=np.float64)
    zero = np.zeros(n)
    edge = sampling.quantile(values, zero, 0.0, zero, 1 / n, 0, CLASSES)
    assert values[-1] / 1.004 <= edge <= values[-1]  # a class is at most 0.4 % wide
    assert sampling.quantile(values, zero, 0.0, zero, 1.0, 0, CLASSES) <= 1.0


def test_a_seed_chooses_the_sample_and_repeats():
    values, zero = np.random.default_rng(4).normal(size=300_000), np.zeros(300_000)
    edges = [sampling.quantile(values, zero, 0.0, zero, 0.01, seed, CLASSES) for seed in (1, 2, 3, 1)]
    assert edges[0] == edges[3] and len(set(edges)) > 1
