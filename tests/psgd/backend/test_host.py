"""A worker's gradients on this process's cores, against the model on the same samples in float64 NumPy."""

import numpy as np
import pytest

from psgd.backend.host import HostBackend
from psgd.data import load
from psgd.data.dataset import Dataset, split
from psgd.data.normalization import AS_THEY_ARE, measure
from psgd.nn.evaluation import EVALUATION_BATCH, evaluated_at_once
from psgd.nn.models import build

FEATURES, CLASSES, BATCH = 6, 3, 8


@pytest.fixture
def made():
    rng = np.random.default_rng(3)

    def part(n):
        return split(rng.normal(size=(n, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, n), "X", "Y")

    dataset = Dataset("made", part(40), part(2 * EVALUATION_BATCH + 7), (FEATURES,), CLASSES)
    statistics = measure(dataset.train)
    model = build("softmax", dataset.sample_shape, CLASSES)
    params = model.init(1)
    params += rng.normal(size=params.size).astype(np.float32)
    backend = HostBackend(model, dataset, statistics, BATCH)
    backend.prepare(params)
    grads = np.full_like(params, np.nan)
    backend.bind(params, grads)
    return backend, dataset, statistics, model, params, grads


def logits(model, params, x):
    weights = {name: np.asarray(view, np.float64) for name, view in model.layout.views(params).items()}
    matrix = next(w for w in weights.values() if w.ndim == 2)
    bias = next(w for w in weights.values() if w.ndim == 1)
    return x @ (matrix if matrix.shape[0] == FEATURES else matrix.T) + bias


def normalized(statistics, x):
    return (x.astype(np.float64) - statistics.mean) * statistics.scale


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("n", [1, 5, BATCH])
def test_a_gradient_is_over_the_samples_asked_for(made, n):
    backend, dataset, statistics, model, params, grads = made
    rows = np.arange(3, 3 + 2 * n, 2)
    x, y = normalized(statistics, dataset.train.x[rows]), dataset.train.y[rows]
    seen = []
    loss = backend.gradient(rows, touch=lambda batch: seen.append(batch.shape))
    p = softmax(logits(model, params, x))
    assert loss == pytest.approx(-np.log(p[np.arange(n), y]).mean(), rel=1e-5)
    p[np.arange(n), y] -= 1
    views = model.layout.views(grads)
    bias = next(v for v in views.values() if v.ndim == 1)
    np.testing.assert_allclose(bias, p.mean(0), rtol=1e-4, atol=1e-6)
    matrix = next(v for v in views.values() if v.ndim == 2)
    wanted = x.T @ p / n
    np.testing.assert_allclose(matrix if matrix.shape[0] == FEATURES else matrix.T, wanted, rtol=1e-4, atol=1e-6)
    assert seen == [(n, FEATURES)]


def test_what_is_done_to_a_batch_is_seen_by_the_gradient(made):
    backend, *_, grads = made
    backend.gradient(np.arange(4), touch=lambda batch: batch.fill(np.nan))
    assert np.isnan(grads).any()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_of_an_evaluation_add_up_to_the_test_set(made, parts):
    backend, dataset, statistics, model, params, _ = made
    z = logits(model, params, normalized(statistics, dataset.test.x))
    p = softmax(z)[np.arange(len(z)), dataset.test.y]
    seen = []
    backend.tally = lambda labels, predicted: seen.append((labels.copy(), predicted))
    told = [backend.evaluate(part, parts) for part in range(parts)]
    labels, predicted = (np.concatenate(each) for each in zip(*seen, strict=True))
    assert len(labels) == len(z) and (labels == predicted).sum() == sum(right for right, _ in told)
    backend.tally = None
    assert sum(right for right, _ in told) == int((z.argmax(1) == dataset.test.y).sum())
    assert sum(loss for _, loss in told) == pytest.approx(-np.log(p).sum(), rel=1e-4)
    assert parts < 4 or told[3] == (0, 0.0)  # three batches only


def test_ranges_are_told_from_the_end_to_the_start(made):
    backend, *_, grads = made
    told = []
    backend.gradient(np.arange(4), on_ready=told.append)
    stops = [part.stop for part in told]
    assert told[0].stop == grads.size and told[-1].start == 0
    assert stops[1:] == [part.start for part in told[:-1]]
    backend.wait()


def test_text_is_evaluated_in_parts_that_are_the_whole():
    dataset = load("genesis", context=64)
    model = build("gpt", (64,), 256, tokens=True, layers=1, width=8, heads=1)
    params = model.init(0)
    backend = HostBackend(model, dataset, AS_THEY_ARE, 4)
    backend.prepare(params)
    backend.bind(params, np.zeros_like(params))
    right, loss = backend.evaluate(0, 1)
    parts = [backend.evaluate(part, 3) for part in range(3)]
    assert sum(part[0] for part in parts) == pytest.approx(right)
    assert sum(part[1] for part in parts) == pytest.approx(loss)
    tokens = dataset.test.samples
    assert loss / tokens == pytest.approx(np.log(256), abs=0.2)
    assert 0 <= right / tokens < 0.2
    assert backend._test_context.batch == evaluated_at_once(64) == EVALUATION_BATCH // 64
    assert (evaluated_at_once(1), evaluated_at_once(10**6)) == (EVALUATION_BATCH, 1)
