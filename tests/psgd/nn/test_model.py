"""A model is a stage and a loss: a batch in parts is the whole, and a loss may write over the logits or not."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.nn.catalog import MODELS
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten

CLASSES, N = 4, 11
IMAGES = [name for name, entry in MODELS.items() if not entry.tokens]
PARTS = (slice(0, 4), slice(4, 5), slice(5, N))


def made(name, dtype=np.float64, xp=np):
    rng = np.random.default_rng(2)
    model = build(name, (2, 5, 4), CLASSES, dtype, hidden=6)
    params = xp.asarray(0.3 * rng.standard_normal(model.layout.size), dtype)
    grads = xp.full_like(params, np.nan)
    model.bind(params, grads)
    x, y = rng.standard_normal((N, 2, 5, 4)), rng.integers(0, CLASSES, N)
    return model, params, grads, xp.asarray(x, dtype), xp.asarray(y)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["host", "gpu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_a_batch_in_parts_is_the_whole(name, on_gpu, dtype, tolerance):
    xp = cupy() if on_gpu else np
    model, _, grads, x, y = made(name, dtype, xp)
    loss = model.gradient(model.context(N), x, y)
    whole = grads.copy()
    ctx = model.context(6)
    runs = []
    for _ in range(2):
        grads.fill(np.nan)
        losses = [
            model.gradient(ctx, x[part], y[part], batch_size=N, accumulate=part is not PARTS[0]) for part in PARTS
        ]
        runs.append((losses, grads.copy()))
    assert sum(losses) == pytest.approx(loss, rel=tolerance)
    xp.testing.assert_allclose(grads, whole, rtol=10 * tolerance, atol=tolerance)
    assert runs[0][0] == runs[1][0]
    xp.testing.assert_array_equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("name", IMAGES)
def test_a_step_in_parts_allocates_nothing_of_an_arrays_size(name):
    import tracemalloc

    model = build(name, (1, 28, 28), 10)
    params = model.init(0)
    model.bind(params, np.zeros_like(params))
    ctx, y = model.context(32), np.arange(32) % 10
    x = np.random.default_rng(0).standard_normal((32, 1, 28, 28)).astype(np.float32)
    model.gradient(ctx, x, y, batch_size=64, accumulate=True)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for accumulate in (False, True):
            model.gradient(ctx, x, y, batch_size=64, accumulate=accumulate)
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert peak < 8192


@pytest.mark.parametrize("name", IMAGES)
def test_gradient_is_stage_and_loss(name):
    model, _, grads, x, y = made(name)
    loss = model.gradient(model.context(N), x, y)
    expected = grads.copy()
    grads.fill(np.nan)
    ctx = model.context(N, wants_dx=True)
    dy = model.forward(ctx, x).copy()
    assert softmax_cross_entropy(dy, y, 1 / N)[0] / N == loss
    assert model.backward(ctx, dy).shape == x.shape
    np.testing.assert_array_equal(grads, expected)


@pytest.mark.parametrize("last", [[Linear(CLASSES, relu=True)], [Linear(CLASSES), ReLU()], [ReLU(), Flatten()]])
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["host", "gpu"])
def test_logits_that_backward_reads_are_not_written_over(last, on_gpu):
    xp = cupy() if on_gpu else np
    model = Model([Linear(CLASSES), *last], (3,), np.float64)
    params = xp.asarray(model.init(0))
    grads = xp.full_like(params, np.nan)
    model.bind(params, grads)
    ctx = model.context(N)
    x, y = xp.asarray(np.random.default_rng(1).standard_normal((N, 3))), xp.arange(N) % CLASSES
    model.gradient(ctx, x, y)
    for at in range(3 * CLASSES):
        losses = []
        for eps in (1e-6, -2e-6):
            params[at] += eps
            losses.append(model.evaluate(ctx, x, y)[1])
        params[at] += 1e-6
        assert float(grads[at]) == pytest.approx((losses[0] - losses[1]) / (2e-6 * N), rel=1e-6, abs=1e-8)


def test_another_loss():
    def hinge(logits, labels, scale):
        """The sum over the other classes of max(0, 1 + their logit - the label's)."""
        rows = np.arange(len(logits))
        right = logits.argmax(axis=1) == labels
        margin = np.maximum(0, 1 + logits - logits[rows, labels][:, None])
        margin[rows, labels] = 0
        logits[...] = scale * (margin > 0)
        logits[rows, labels] = -logits.sum(axis=1)
        return margin.sum(), int(right.sum())

    model, params, grads, x, y = made("mlp")
    ctx = model.context(N)
    model.gradient(ctx, x, y, loss_of=hinge)
    expected = grads.copy()
    for at in range(0, model.layout.size, 7):
        losses = []
        for eps in (1e-6, -2e-6):
            params[at] += eps
            losses.append(model.gradient(ctx, x, y, loss_of=hinge))
        params[at] += 1e-6
        assert expected[at] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["host", "gpu"])
def test_an_evaluation_tells_labels_and_predictions_in_parts(on_gpu):
    model, _, _, x, y = made("mlp", xp=cupy() if on_gpu else np)
    ctx, seen = model.context(4), []
    expected = model.logits(model.context(N), x).argmax(axis=1)
    found = model.evaluate(ctx, x, y, lambda labels, predicted: seen.append((labels.tolist(), predicted.tolist())))
    assert found == model.evaluate(ctx, x, y)
    assert [len(labels) for labels, _ in seen] == [4, 4, 3]
    assert [each for labels, _ in seen for each in labels] == y.tolist()
    assert [each for _, predicted in seen for each in predicted] == expected.tolist()
