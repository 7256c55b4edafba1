"""Each optimizer step against its formula in float64, twice, the same bits on a GPU, and SGD against PyTorch's bits."""

from fractions import Fraction

import numpy as np
import pytest
from harness.device import on_gpu
from harness.fused import multiply_add

from psgd.kernels import update
from psgd.kernels.jit import kernel

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


@pytest.mark.parametrize(("factor", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("decay", [0.0, 5e-4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 101, 4099])
def test_sgd_has_the_bits_of_pytorch(n, dtype, decay, factor, nesterov):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(n)
    w = rng.standard_normal(n).astype(dtype)
    start, v = w.copy(), np.zeros_like(w)
    theirs = torch.nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = torch.optim.SGD([theirs], lr=0.05, momentum=factor, weight_decay=decay, nesterov=nesterov)
    for _ in range(5):
        g = rng.standard_normal(n).astype(dtype)
        theirs.grad = torch.from_numpy(g / 2)
        optimizer.step()
        if factor:
            update.momentum(w, g, v, 0.05, 0.5, decay, factor, nesterov)
        else:
            update.sgd(w, g, 0.05, 0.5, decay)
    np.testing.assert_array_equal(w, theirs.detach().numpy())
    assert (w != start).all()


@kernel
def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray, out: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = update.multiply_add(a[i], b[i], c[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_and_a_sum_are_rounded_once(dtype):
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((3, 5001)).astype(dtype)
    c[:2000] = -(a * b)[:2000]  # what is left is the rounding error of the product
    c[2000:3000] *= 2.0**-20
    out, exact = np.empty_like(c), [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    fused(a, b, c, out)
    assert out[:2000].any(), "rounded twice it would be 0"
    np.testing.assert_array_equal(out, multiply_add(a, b, c))  # the simulations' own
    gap = [abs(e + Fraction(float(z)) - Fraction(float(o))) for e, z, o in zip(exact, c, out, strict=True)]
    assert all(2 * g <= Fraction(float(np.spacing(abs(o)))) for g, o in zip(gap, out, strict=True))
