"""Softmax cross-entropy on the host and on a GPU, against the closed form in float64."""

import numpy as np
import pytest
from harness.device import cupy, on_gpu

from psgd.kernels.errors import DataError
from psgd.kernels.layers.loss import loss_and_hits, softmax_cross_entropy

FORMS = [softmax_cross_entropy, on_gpu(softmax_cross_entropy)]


def oracle(logits, labels):
    z = logits.astype(np.float64)
    power = np.exp(z - z.max(axis=1, keepdims=True))
    p = power / power.sum(axis=1, keepdims=True)
    rows = np.arange(len(z))
    gradient = p.copy()
    gradient[rows, labels] -= 1
    return -np.log(p[rows, labels]).sum(), (z.argmax(axis=1) == labels).sum(), gradient


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 10), (64, 10), (500, 10), (5, 1001), (301, 1001)])
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


@pytest.mark.parametrize("form", [on_gpu(softmax_cross_entropy)])
def test_many_blocks_sum_in_a_fixed_order(form):
    rng = np.random.default_rng(3)
    logits, labels = rng.standard_normal((9000, 33)).astype(np.float32), rng.integers(0, 33, 9000)
    results = [form(logits.copy(), labels, 1.0) for _ in range(5)]
    loss, correct, _ = oracle(logits, labels)
    assert len(set(results)) == 1 and results[0][0] == pytest.approx(loss, rel=1e-5) and results[0][1] == correct


@pytest.mark.parametrize("form", [on_gpu(softmax_cross_entropy)])
def test_a_wrong_label_among_many_rows(form):
    labels = np.zeros(9000, np.int64)
    labels[[7777, 8000]] = 33
    with pytest.raises(DataError, match="label 33 in row 7777"):
        form(np.zeros((9000, 33), np.float32), labels, 1.0)


@pytest.mark.parametrize("form", FORMS)
def test_huge_logits_do_not_overflow(form):
    logits = np.array([[1e30, -1e30, 0], [-1e30, -1e30, -1e30]], np.float32)
    loss, correct = form(logits, np.array([0, 1]), 1.0)
    assert loss == pytest.approx(np.log(3))
    assert correct == 1
    np.testing.assert_allclose(logits, [[0, 0, 0], [1 / 3, -2 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_nan_shows(form, where):
    logits = np.zeros((1, 3), np.float32)
    logits[0, where] = np.nan
    loss, _ = form(logits, np.array([1]), 1.0)
    assert np.isnan(loss)
    assert np.isnan(logits).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_label_out_of_range(form, label):
    with pytest.raises(DataError, match=rf"label {label} in row 1 .* 0\.\.2"):
        form(np.zeros((2, 3), np.float32), np.array([0, label]), 1.0)


@pytest.mark.parametrize("form", [loss_and_hits, on_gpu(loss_and_hits)])
def test_the_pass_itself_says_which_row_is_wrong(form):
    assert form(np.zeros((3, 4), np.float32), np.array([0, 1, 4]), 1.0) == (-1.0, 2)


@pytest.mark.gpu
def test_losses_of_a_batch_in_parts_are_shares_of_its_mean():
    xp = cupy()
    from psgd.kernels.device.layers import loss as device

    logits = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    labels = np.array([0, 1, 2, 0, 1, 2])
    whole, _ = softmax_cross_entropy(logits.copy(), labels, 1 / 6)
    kept, steps = xp.zeros(4, np.float64), xp.zeros(1, np.int64)
    for rows in (slice(0, 4), slice(4, 6), slice(0, 6)):
        device.start(xp.asarray(logits[rows]), xp.asarray(labels[rows]), 1 / 6, kept, steps)
    first, second, all_at_once, _ = kept.tolist()
    assert all_at_once == pytest.approx(whole / 6, rel=1e-6)
    assert first + second == pytest.approx(all_at_once, rel=1e-12) and 0 < second < first
