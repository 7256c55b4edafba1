"""The model gpt: gradients against finite differences, its options, and 200 steps beside PyTorch's own modules."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.data import load
from psgd.kernels.errors import UsageError
from psgd.nn.models import build
from psgd.nn.stage import Stage

N, TOKENS, VOCABULARY = 5, 6, 11
SMALL = {"layers": 2, "width": 8, "heads": 2}


def made(dtype=np.float64, xp=np, layers=2):
    rng = np.random.default_rng(2)
    model = build("gpt", (TOKENS,), VOCABULARY, dtype, tokens=True, **SMALL | {"layers": layers})
    params = xp.asarray(model.init(0) + 0.1 * rng.standard_normal(model.layout.size), dtype)
    grads = xp.full_like(params, np.nan)
    model.bind(params, grads)
    x, y = (rng.integers(0, VOCABULARY, (N, TOKENS)) for _ in range(2))
    return model, params, grads, xp.asarray(x, dtype), xp.asarray(y)


def test_finite_differences():
    model, params, grads, x, y = made()
    ctx = model.context(N)
    loss = model.gradient(ctx, x, y)
    assert loss == pytest.approx(model.evaluate(ctx, x, y)[1] / N, rel=1e-12)
    eps = 1e-6
    for at in np.random.default_rng(0).permutation(model.layout.size)[:300]:
        kept = params[at]
        params[at] = kept + eps
        above = model.evaluate(ctx, x, y)[1]
        params[at] = kept - eps
        slope = (above - model.evaluate(ctx, x, y)[1]) / (2 * eps * N)
        params[at] = kept
        assert grads[at] == pytest.approx(slope, rel=1e-5, abs=1e-8), at


def test_loss_and_right_answers_are_means_over_tokens():
    model, _, _, x, y = made()
    z = model.logits(model.context(N), x).copy().reshape(-1, VOCABULARY)
    labels = y.reshape(-1)
    right, loss = model.evaluate(model.context(2), x, y)
    assert right == pytest.approx((z.argmax(1) == labels).mean() * N)
    losses = np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]
    assert loss == pytest.approx(losses.mean() * N)


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["host", "gpu"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_a_batch_in_parts_is_the_whole(on_gpu, dtype, tolerance):
    xp = cupy() if on_gpu else np
    model, _, grads, x, y = made(dtype, xp)
    loss = model.gradient(model.context(N), x, y)
    whole, ctx = grads.copy(), model.context(3)
    grads.fill(np.nan)
    parts = (slice(0, 3), slice(3, 4), slice(4, N))
    losses = [model.gradient(ctx, x[p], y[p], batch_size=N, accumulate=p is not parts[0]) for p in parts]
    assert sum(losses) == pytest.approx(loss, rel=tolerance)
    xp.testing.assert_allclose(grads, whole, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-11)])
def test_a_gpu_is_the_host_to_rounding(dtype, tolerance):
    xp = cupy()
    model, _, grads, x, y = made(dtype)
    loss, expected = model.gradient(model.context(N), x, y), grads.copy()
    model, _, grads, x, y = made(dtype, xp)
    assert model.gradient(model.context(N), x, y) == pytest.approx(loss, rel=tolerance)
    np.testing.assert_allclose(grads.get(), expected, rtol=tolerance, atol=tolerance)


def test_a_step_allocates_nothing_of_an_arrays_size():
    import tracemalloc

    model = build("gpt", (32,), 64, tokens=True, layers=2, width=32, heads=2)
    params = model.init(0)
    model.bind(params, np.zeros_like(params))
    ctx = model.context(8)
    x, y = np.random.default_rng(0).integers(0, 64, (2, 8, 32))
    x = x.astype(np.float32)
    model.gradient(ctx, x, y)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        model.gradient(ctx, x, y)
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert peak < 16384


def test_parameters_and_options():
    model = build("gpt", (16,), 256, tokens=True, layers=3, width=12, heads=3)
    assert [p.name for p in model.layout.parameters if p.name.startswith("residual1.")] == [
        "residual1.layernorm1.weight", "residual1.layernorm1.bias",
        "residual1.attention1.qkv.weight", "residual1.attention1.qkv.bias",
        "residual1.attention1.out.weight", "residual1.attention1.out.bias",
    ]  # fmt: skip
    assert model.layout.tied == (("unembedding1.weight", "embedding1.weight"),)
    assert len(model.layers) == 2 + 2 * 3 + 2
    small = build("gpt", (128,), 256, tokens=True)
    assert sum(p.size for p in small.layout.parameters) == 256 * 128 + 128 * 128 + 4 * (12 * 128**2 + 13 * 128) + 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "expected a width that is a multiple of its 5 heads, got 8"),
        ({"layers": 0}, "expected options of at least 1"),
        ({"shape": (2, 3)}, r"needs samples of tokens, got samples of shape \(2, 3\)"),
        ({"tokens": False}, "the dataset has samples with one class each, not text; expected --model softmax"),
        ({"name": "mlp"}, "the dataset has text, whose tokens have a class each; expected --model gpt"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options, message):
    chosen = {"name": "gpt", "shape": (TOKENS,), "tokens": True, **SMALL} | options
    with pytest.raises(UsageError, match=message) as caught:
        build(chosen.pop("name"), chosen.pop("shape"), VOCABULARY, **chosen)
    assert "\n" not in str(caught.value)


def test_cut_into_stages_it_has_the_same_gradient():
    """Both parts hold the table; the sum of their gradients is the whole model's."""
    model, params, grads, x, y = made()
    model.gradient(model.context(N), x, y)
    expected, values = model.layout.views(grads), model.layout.views(params)
    parts = [model.cut(0, 3), model.cut(3, len(model.layers))]
    vectors = []
    for part in parts:
        mine, slopes = np.zeros(part.layout.size), np.full(part.layout.size, np.nan)
        for name, view in part.layout.views(mine).items():
            view[...] = values[name]
        part.bind(mine, slopes)
        vectors.append(part.layout.views(slopes))
    assert type(parts[0]) is Stage
    first, last = parts[0].context(N), parts[1].context(N, wants_dx=True)
    between = parts[0].forward(first, x)
    parts[1].forward(last, between)
    dy, _ = parts[1].loss(last, y)
    parts[0].backward(first, parts[1].backward(last, dy))
    for name in expected:
        found = [vector[name] for vector in vectors if name in vector]
        if name in ("embedding1.weight", "unembedding1.weight"):
            found = [vectors[0]["embedding1.weight"], vectors[1]["unembedding1.weight"]]
        np.testing.assert_allclose(sum(found), expected[name], rtol=1e-12, atol=1e-13)


def test_it_learns_the_text_in_the_package():
    dataset = load("genesis", context=32)
    model = build("gpt", (32,), 256, tokens=True, layers=1, width=32, heads=2)
    params = model.init(0)
    grads = np.empty_like(params)
    model.bind(params, grads)
    ctx = model.context(16)
    losses = []
    mean, square = np.zeros_like(params), np.zeros_like(params)
    for step in range(1, 151):
        part = slice(step * 16 % 4000, step * 16 % 4000 + 16)
        losses.append(model.gradient(ctx, dataset.train.x[part].astype(np.float32), dataset.train.y[part]))
        mean += 0.1 * (grads - mean)
        square += 0.01 * (grads * grads - square)
        params -= 3e-3 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    assert losses[0] == pytest.approx(np.log(256), abs=0.3)
    assert np.mean(losses[-10:]) < 2.7
