import numpy as np
import pytest

from psgd.kernels.exact_squares import squares
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.server.shard import Shard

N = 23


def step(shard, grads, group):
    """Applies a group of gradients by worker and records the order of calls."""
    calls = []

    def fetch(worker, segment):
        calls.append(("fetch", worker, segment))
        part = shard.ranges[segment]
        return grads[worker][part.start : part.stop]

    shard.apply(group, fetch, lambda s: calls.append(("settle", s)), lambda s: calls.append(("emit", s)))
    return calls


def make(segment=8, sum_over_shards=lambda mine: mine, **options):
    params = np.arange(N, dtype=np.float64)
    options.setdefault("rule", rules.sgd())
    options.setdefault("schedule", schedules.constant(0.5))
    return Shard(params, OptimizerOptions(**options), segment=segment, sum_over_shards=sum_over_shards)


GRADS = {w: np.random.default_rng(w).normal(size=N) for w in range(3)}


def test_one_contribution_is_taken_as_it_is():
    shard = make()
    step(shard, GRADS, [(1, 64, 1.0)])
    np.testing.assert_array_equal(shard.params, np.arange(N) - 0.5 * GRADS[1])
    assert (shard.version, shard.samples) == (1, 64)


@pytest.mark.parametrize("segment", [1, 8, 100])
def test_a_group_steps_on_the_mean_by_samples(segment):
    shard = make(segment)
    step(shard, GRADS, [(0, 10, 1.0), (1, 20, 1.0), (2, 5, 1.0)])
    mean = (10 * GRADS[0] + 20 * GRADS[1] + 5 * GRADS[2]) / 35
    np.testing.assert_allclose(shard.params, np.arange(N) - 0.5 * mean, rtol=1e-14)
    assert (shard.version, shard.samples) == (1, 35)


def test_weights_multiply_contributions_and_not_the_divisor():
    shard = make()
    step(shard, GRADS, [(0, 10, 0.5), (1, 20, 0.25)])
    mean = (5 * GRADS[0] + 5 * GRADS[1]) / 30
    np.testing.assert_allclose(shard.params, np.arange(N) - 0.5 * mean, rtol=1e-14)
    assert shard.samples == 30


def test_sum_multiplies_the_mean():
    shard = make(reduction_factor=3.0)
    step(shard, GRADS, [(0, 8, 1.0), (1, 8, 1.0), (2, 8, 1.0)])
    np.testing.assert_allclose(shard.params, np.arange(N) - 0.5 * sum(GRADS.values()), rtol=1e-14)


def test_an_empty_group_moves_nothing_but_answers():
    shard = make()
    calls = step(shard, GRADS, [])
    np.testing.assert_array_equal(shard.params, np.arange(N))
    assert (shard.version, shard.samples) == (0, 0)
    assert calls == [("emit", 0), ("emit", 1), ("emit", 2)]


def test_segments_stream():
    calls = step(make(), GRADS, [(0, 1, 1.0), (2, 1, 1.0)])
    expected = []
    for s in range(3):
        expected += [("fetch", 0, s), ("fetch", 2, s), ("settle", s), ("emit", s)]
    assert calls == expected


@pytest.mark.parametrize("group", [[(0, 4, 1.0)], [(0, 4, 1.0), (1, 12, 1.0)]])
def test_clip_shrinks_to_the_norm(group):
    shard = make(clip_norm=0.01)
    step(shard, GRADS, group)
    total = sum(b for _, b, _ in group)
    mean = sum(b * GRADS[w] for w, b, _ in group) / total
    expected = np.arange(N) - 0.5 * 0.01 * mean / np.linalg.norm(mean)
    np.testing.assert_allclose(shard.params, expected, rtol=1e-12)


def test_clip_leaves_small_gradients_alone():
    shard, plain = make(clip_norm=1e6), make()
    group = [(0, 4, 1.0), (1, 12, 1.0)]
    step(shard, GRADS, group)
    step(plain, GRADS, group)
    np.testing.assert_array_equal(shard.params, plain.params)


def test_clip_uses_the_norm_over_all_shards():
    shard = make(clip_norm=1.0, sum_over_shards=lambda mine: mine + squares(np.full(1, 10.0)))
    step(shard, GRADS, [(0, 4, 1.0)])
    norm = np.sqrt(GRADS[0] @ GRADS[0] + 100.0)
    np.testing.assert_allclose(shard.params, np.arange(N) - 0.5 * GRADS[0] / norm, rtol=1e-12)


def test_the_rate_follows_global_samples():
    seen = []

    def rate(samples):
        seen.append(samples)
        return 1.0

    shard = make(schedule=rate)
    step(shard, GRADS, [(0, 10, 1.0), (1, 20, 1.0)])
    step(shard, GRADS, [(2, 5, 1.0)])
    assert seen == [0, 0, 30]  # once to begin with, then before each step
