"""Each rule against the formula in float64, and against PyTorch where it is installed."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.optim import rules
from psgd.optim.catalog import RULES

N, STEPS, LR = 13, 7, 0.1
RNG = np.random.default_rng(7)
START = RNG.normal(size=N)
GRADS = RNG.normal(size=(STEPS, N))


def formula(name, weight_decay, momentum=0.9):
    w, v, m, s = START.copy(), np.zeros(N), np.zeros(N), np.zeros(N)
    for t, raw in enumerate(GRADS, 1):
        g = raw + weight_decay * w
        if name == "sgd":
            w = w - LR * g
        elif name == "adam":
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
            w = w - LR * (m / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
        else:
            v = momentum * v + g
            w = w - LR * (g + momentum * v if name == "nesterov" else v)
    return w


def run(name, weight_decay, dtype, pieces=1, scale=1.0):
    rule = rules.create(name, 0.9, weight_decay)
    w = START.astype(dtype)
    state = rule.init(w)
    cuts = np.array_split(np.arange(N), pieces)
    for t, g in enumerate(GRADS, 1):
        for cut in cuts:
            part = slice(cut[0], cut[-1] + 1)
            rule.update(w[part], (g / scale).astype(dtype)[part], tuple(s[part] for s in state), LR, scale, t)
    return w


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("name", RULES)
def test_formula_in_float64(name, weight_decay):
    np.testing.assert_allclose(run(name, weight_decay, np.float64), formula(name, weight_decay), rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_scale_multiplies_the_gradient(name):
    np.testing.assert_allclose(run(name, 0.01, np.float64, scale=8.0), formula(name, 0.01), rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_segments_change_no_bit(name):
    np.testing.assert_array_equal(run(name, 0.01, np.float32, pieces=4), run(name, 0.01, np.float32))


@pytest.mark.parametrize("name", RULES)
def test_float32_stays_float32(name):
    w = run(name, 0.01, np.float32)
    assert w.dtype == np.float32
    np.testing.assert_allclose(w, formula(name, 0.01), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", RULES)
def test_as_pytorch(name):
    torch = pytest.importorskip("torch")
    w = torch.tensor(START, requires_grad=True)
    if name == "adam":
        optimizer = torch.optim.Adam([w], lr=LR, weight_decay=0.01)
    else:
        optimizer = torch.optim.SGD(
            [w], lr=LR, momentum=0.0 if name == "sgd" else 0.9, nesterov=name == "nesterov", weight_decay=0.01
        )
    for g in GRADS:
        w.grad = torch.tensor(g)
        optimizer.step()
    np.testing.assert_allclose(run(name, 0.01, np.float64), w.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("name", RULES)
def test_converges_on_a_quadratic(name):
    rule = rules.create(name)
    w = np.full(3, 5.0)
    curvature = np.array([1.0, 2.0, 0.5])
    state = rule.init(w)
    for t in range(1, 2001):
        rule.update(w, curvature * (w - 1.0), state, 0.05, 1.0, t)
    np.testing.assert_allclose(w, 1.0, atol=1e-3)


def test_unknown_name():
    with pytest.raises(UsageError, match="expected one of sgd, momentum, nesterov, adam, got 'lamb'"):
        rules.create("lamb")
