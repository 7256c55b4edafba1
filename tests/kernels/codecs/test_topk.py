"""Deep Gradient Compression's codec against its definition, in NumPy."""

import numpy as np
import pytest

from psgd.kernels import codecs


def said_by(codec, update):
    payload = np.empty(codec.max_nbytes(), np.uint8)
    out = np.zeros(codec.n, codec.dtype)
    codec.decode_add(payload[: codec.encode(update, payload)], out)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_momentum_is_corrected_and_masked(dtype):
    n, momentum = 8000, dtype(0.75)
    rng = np.random.default_rng(0)
    codec = codecs.create("topk", n, dtype, density=0.02, momentum=0.75)
    u, v = np.zeros(n, dtype), np.zeros(n, dtype)
    for _ in range(10):
        update = rng.standard_normal(n).astype(dtype)
        said = said_by(codec, update)
        u = momentum * u + update
        v = v + u
        sent = said != 0
        size = np.abs(v)
        assert size[sent].min() > size[~sent].max()  # the largest
        assert codec.sent == np.count_nonzero(sent) == pytest.approx(0.02 * n, rel=0.3)
        np.testing.assert_array_equal(said[sent], v[sent].astype(np.float32))
        v -= said
        u[sent] = 0
        np.testing.assert_array_equal(codec.velocity, u)
        np.testing.assert_array_equal(codec.residual, v)


def test_half_values_are_rounded_to_the_nearest_and_the_rest_stays():
    n = 4000
    update = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    update[:4] = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-9)]  # ties go to even
    codec = codecs.create("topk", n, density=1.0, momentum=0.0, values="bfloat16")
    said = said_by(codec, update)
    np.testing.assert_array_equal(said[:4], [1.0, 1 + 2**-6, 1 + 2**-7, -1.0])
    _, exponent = np.frexp(update)
    assert (np.abs(said - update) <= np.ldexp(1.0, exponent - 9)).all()
    np.testing.assert_array_equal(codec.residual, update - said)


@pytest.mark.parametrize("density", [0.5, 0.01, 0.001])
def test_a_sample_finds_the_threshold(density):
    n = 300_000
    codec = codecs.create("topk", n, density=density, momentum=0.0)
    for seed in range(3):
        codec.residual[:] = 0
        said_by(codec, np.random.default_rng(seed).standard_normal(n).astype(np.float32))
        assert codec.sent / n == pytest.approx(density, rel=0.5 if density < 0.01 else 0.15)


def test_equal_values_are_sent_at_last():
    """The sample cannot divide them: as many as may be are sent at once, and the others later."""
    n = 10_000
    codec = codecs.create("topk", n, density=0.01, momentum=0.0)
    total = said_by(codec, np.full(n, 0.5, np.float32))
    assert codec.sent == 2 * 100 + 64
    for _ in range(40):
        total += said_by(codec, np.zeros(n, np.float32))
    np.testing.assert_array_equal(total, np.full(n, 0.5))
    assert not codec.residual.any()


def test_density_may_change_up_to_its_largest():
    n = 50_000
    codec = codecs.create("topk", n, density=0.25, max_density=0.25)
    rng = np.random.default_rng(2)
    for density in (0.25, 0.0625, 0.015625, 0.004, 0.001, 0.25):
        codec.density = density
        said_by(codec, rng.standard_normal(n).astype(np.float32))
        assert codec.sent / n == pytest.approx(density, rel=0.5)
