"""Strom's threshold codec against its definition in float64, and tau against the density."""

import numpy as np
import pytest

from psgd.kernels import codecs


def run(codec, updates):
    payload, out = np.empty(codec.max_nbytes(), np.uint8), np.zeros(codec.n, codec.dtype)
    for update in updates:
        out[:] = 0
        codec.decode_add(payload[: codec.encode(update, payload)], out)
        yield out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_element_by_the_definition(dtype):
    """On multiples of 2^-8 nothing is rounded, so a float64 shadow must agree in every bit."""
    n, tau = 9001, 0.375
    rng = np.random.default_rng(0)
    codec = codecs.create("threshold", n, dtype, tau=tau, adapt=False)
    updates = (rng.integers(-300, 301, (30, n)) / 256).astype(dtype)
    updates[:, 5] = 0.375  # exactly tau is not beyond it
    shadow = np.zeros(n)
    for update, said in zip(updates, run(codec, updates), strict=True):
        shadow += update
        expected = np.where(shadow > tau, tau, np.where(shadow < -tau, -tau, 0.0))
        shadow -= expected
        np.testing.assert_array_equal(said, expected)
        np.testing.assert_array_equal(codec.residual, shadow)
        assert codec.sent == np.count_nonzero(expected)
        assert codec.tau == tau
    assert np.abs(shadow).max() > 2 * tau  # tau is taken away, not all


def test_clipping_is_counted_and_bounds_the_residual():
    n = 5000
    codec = codecs.create("threshold", n, tau=0.25, adapt=False, clip=2.0)
    update = np.linspace(-2, 2, n, dtype=np.float32)
    for _ in run(codec, [update]):
        pass
    left = np.where(
        update > 0.25, update - np.float32(0.25), np.where(update < -0.25, update + np.float32(0.25), update)
    )
    np.testing.assert_array_equal(codec.residual, np.clip(left, -0.5, 0.5))
    assert codec.clipped == np.count_nonzero(np.abs(left) > 0.5) > 1000


@pytest.mark.parametrize("kind", ["noise", "drift", "heavy"])
@pytest.mark.parametrize("density", [0.05, 0.01])
def test_tau_brings_the_density(kind, density):
    n, rng = 20_000, np.random.default_rng(1)
    codec = codecs.create("threshold", n, density=density)
    mean = rng.standard_normal(n, dtype=np.float32) / 10
    sent = []
    payload = np.empty(codec.max_nbytes(), np.uint8)
    for _ in range(200):
        update = rng.standard_normal(n, dtype=np.float32)
        if kind == "drift":
            update += mean
        if kind == "heavy":
            update **= 3
        codec.encode(update, payload)
        sent.append(codec.sent / n)
    assert np.mean(sent[100:]) == pytest.approx(density, rel=0.15)
    assert max(sent[50:]) < 2 * density


@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_tau_follows_a_change_of_scale_both_ways(factor):
    n, rng = 20_000, np.random.default_rng(2)
    codec = codecs.create("threshold", n, density=0.05)
    payload = np.empty(codec.max_nbytes(), np.uint8)
    taus = []
    for step in range(700):
        scale = np.float32(1.0 if step < 100 else factor)
        codec.encode(rng.standard_normal(n, dtype=np.float32) * scale, payload)
        taus.append(codec.tau)
    assert taus[-1] / taus[99] == pytest.approx(factor, rel=0.5)
    assert codec.sent / n == pytest.approx(0.05, rel=0.5)


def test_tau_stays_where_there_is_nothing_to_learn_from():
    n = 1000
    codec = codecs.create("threshold", n, density=0.01)
    payload = np.empty(codec.max_nbytes(), np.uint8)
    zeros = np.zeros(n, np.float32)
    codec.encode(zeros, payload)
    assert codec.tau == 0.0 and codec.sent == 0
    few = zeros.copy()
    few[[3, 500]] = [1.0, -4.0]  # fewer than the density: the sample's value is 0
    codec.encode(few, payload)
    tau = codec.tau
    assert 0.1 < tau < 4.0
    for _ in range(50):
        codec.encode(zeros, payload)
    assert codec.tau == tau


def test_the_residual_of_a_sparse_gradient_stays_bounded():
    """Fewer elements than the density asks for are never zero: tau must not fall for ever."""
    n, rng = 20_000, np.random.default_rng(3)
    codec = codecs.create("threshold", n, density=0.01)
    payload = np.empty(codec.max_nbytes(), np.uint8)
    for _ in range(300):
        update = np.zeros(n, np.float32)
        update[:20] = 1 + rng.random(20)
        codec.encode(update, payload)
    assert np.abs(codec.residual).max() < 30 and codec.tau > 0.05
