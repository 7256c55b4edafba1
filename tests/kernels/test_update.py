"""Each optimizer step against its formula in float64, twice, and the same bits on a GPU."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels import update

LR, SCALE, DECAY, FACTOR = 0.1, 0.25, 0.01, 0.9


def arrays(dtype, count):
    rng = np.random.default_rng(count)
    return [rng.standard_normal(101).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
@pytest.mark.parametrize("form", [update.sgd, on_gpu(update.sgd)])
def test_sgd(form, dtype, tolerance):
    w, g = arrays(dtype, 2)
    expected = w.astype(np.float64) - LR * (SCALE * g + DECAY * w)
    form(w, g, LR, SCALE, DECAY)
    np.testing.assert_allclose(w, expected, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
@pytest.mark.parametrize("form", [update.momentum, on_gpu(update.momentum)])
def test_momentum(form, dtype, tolerance, nesterov):
    w, g, v = arrays(dtype, 3)
    gradient = SCALE * g.astype(np.float64) + DECAY * w
    velocity = FACTOR * v + gradient
    expected = w - LR * (gradient + FACTOR * velocity if nesterov else velocity)
    form(w, g, v, LR, SCALE, DECAY, FACTOR, nesterov)
    np.testing.assert_allclose(v, velocity, rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_allclose(w, expected, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
@pytest.mark.parametrize("form", [update.adam, on_gpu(update.adam)])
def test_adam(form, dtype, tolerance):
    w, g, m, s = arrays(dtype, 4)
    s = abs(s)
    gradient = SCALE * g.astype(np.float64) + DECAY * w
    mean, square = 0.9 * m + 0.1 * gradient, 0.999 * s.astype(np.float64) + 0.001 * gradient**2
    expected = w - LR * (mean / (1 - 0.9**3)) / (np.sqrt(square / (1 - 0.999**3)) + 1e-8)
    form(w, g, m, s, LR, SCALE, DECAY, 0.9, 0.999, 1e-8, 3)
    np.testing.assert_allclose(m, mean, rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_allclose(s, square, rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_allclose(w, expected, rtol=100 * tolerance, atol=tolerance)
