"""Softmax cross-entropy on the host and by whole arrays, against the closed form in float64."""

import numpy as np
import pytest

from psgd.kernels.errors import DataError
from psgd.kernels.loss import by_array, softmax_cross_entropy


def by_array_numpy(logits, labels, scale):
    return by_array(np, logits, labels, scale)


def on_gpu(logits, labels, scale):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    device = cupy.asarray(logits)
    result = softmax_cross_entropy(device, cupy.asarray(labels), scale)
    logits[...] = device.get()
    return result


FORMS = [softmax_cross_entropy, by_array_numpy, pytest.param(on_gpu, marks=pytest.mark.gpu)]


def oracle(logits, labels):
    z = logits.astype(np.float64)
    power = np.exp(z - z.max(axis=1, keepdims=True))
    p = power / power.sum(axis=1, keepdims=True)
    rows = np.arange(len(z))
    gradient = p.copy()
    gradient[rows, labels] -= 1
    return -np.log(p[rows, labels]).sum(), (z.argmax(axis=1) == labels).sum(), gradient


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 10), (64, 10), (5, 1001)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-14)])
def test_closed_form(form, n, classes, dtype, tolerance):
    rng = np.random.default_rng(n)
    logits = (3 * rng.standard_normal((n, classes))).astype(dtype)
    labels = rng.integers(0, classes, n)
    loss, correct, gradient = oracle(logits, labels)
    got_loss, got_correct = form(logits, labels, 1 / n)
    assert got_loss == pytest.approx(loss, rel=tolerance)
    assert got_correct == correct
    assert logits.dtype == dtype
    np.testing.assert_allclose(logits, gradient / n, rtol=10 * tolerance, atol=tolerance / n)


@pytest.mark.parametrize("form", FORMS)
def test_huge_logits_do_not_overflow(form):
    logits = np.array([[1e30, -1e30, 0], [-1e30, -1e30, -1e30]], np.float32)
    loss, correct = form(logits, np.array([0, 1]), 1.0)
    assert loss == pytest.approx(np.log(3))
    assert correct == 1
    np.testing.assert_allclose(logits, [[0, 0, 0], [1 / 3, -2 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_shows(where):
    logits = np.zeros((1, 3), np.float32)
    logits[0, where] = np.nan
    loss, _ = softmax_cross_entropy(logits, np.array([1]), 1.0)
    assert np.isnan(loss)
    assert np.isnan(logits).all()


@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_label_out_of_range(label):
    with pytest.raises(DataError, match=rf"label {label} in row 1 .* 0\.\.2"):
        softmax_cross_entropy(np.zeros((2, 3), np.float32), np.array([0, label]), 1.0)
    loss, row = by_array(np, np.zeros((2, 3), np.float32), np.array([0, label]), 1.0)
    assert (loss, row) == (-1.0, 1)
