"""Whole models: finite differences, PyTorch, contexts, binding, on_ready, initialization, allocation."""

import itertools
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import DataError
from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.nn.catalog import MODELS
from psgd.nn.conv2d import Conv2D
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.models import build
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten

PLAIN = [("softmax", (7,)), ("softmax", (2, 3, 4)), ("mlp", (7,)), ("mlp", (1, 5, 4)), ("cnn", (1, 8, 8)),
         ("cnn", (3, 9, 7)), ("cnn", (2, 4, 5))]  # fmt: skip
CASES = [*PLAIN, ("resmlp", (5, 3)), ("resmlp", (1, 4, 4)), ("resmlp", (2, 3, 4))]
CLASSES, HIDDEN, BATCH, N = 4, 9, 5, 3
ROOT = Path(psgd.__path__[0]).parent


def make(name, shape, dtype=np.float64):
    """A bound model with distinct parameters (biases too), and N samples of data for it."""
    rng = np.random.default_rng(1)
    model = build(name, shape, CLASSES, dtype, hidden=HIDDEN)
    params = rng.standard_normal(model.layout.size).astype(dtype) * dtype(0.3)
    grads = np.full_like(params, np.nan)
    model.bind(params, grads)
    x = rng.standard_normal((N, *shape)).astype(dtype)
    return model, params, grads, x, np.array([3, 0, 1])


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_finite_differences(name, shape):
    model, params, grads, x, y = make(name, shape)
    ctx = model.context(BATCH)
    loss = model.gradient(ctx, x, y)
    assert loss == pytest.approx(model.evaluate(ctx, x, y)[1] / N, rel=1e-12)
    chosen = np.random.default_rng(0).permutation(model.layout.size)[:400]
    eps = 1e-6
    for at in chosen:
        kept = params[at]
        params[at] = kept + eps
        above = model.evaluate(ctx, x, y)[1]
        params[at] = kept - eps
        slope = (above - model.evaluate(ctx, x, y)[1]) / (2 * eps * N)
        params[at] = kept
        assert grads[at] == pytest.approx(slope, rel=1e-6, abs=1e-8), at


def reorder(h, w, c):
    """Our weight behind Flatten, rows in (h, w, c), to PyTorch's, columns in (c, h, w), and back."""
    return (
        lambda a: a.reshape(h, w, c, -1).transpose(3, 2, 0, 1).reshape(a.shape[1], -1),
        lambda g: g.reshape(-1, c, h, w).permute(2, 3, 1, 0).reshape(h * w * c, -1),
    )


def torch_twin(torch, model, params):
    """The same network by PyTorch; returns it and a function that puts its gradients in our order."""
    nn = torch.nn
    views = model.layout.views(params)
    shape, modules, copies, counts, flattened = model.input_shape, [], [], {}, None
    for layer in model.layers:
        counts[layer.name] = counts.get(layer.name, 0) + 1
        ours = f"{layer.name}{counts[layer.name]}"
        if isinstance(layer, Conv2D):
            modules.append(nn.Conv2d(shape[2], layer.channels, layer.size, layer.stride, layer.padding))
            copies.append((ours, modules[-1], lambda w: w.transpose(3, 2, 0, 1), lambda g: g.permute(2, 3, 1, 0)))
        elif isinstance(layer, Linear):
            modules.append(nn.Linear(shape[0], layer.units))
            if flattened:  # we flatten (h, w, c), PyTorch (c, h, w)
                forth, back = reorder(*flattened)
                copies.append((ours, modules[-1], forth, back))
            else:
                copies.append((ours, modules[-1], lambda w: w.T, lambda g: g.T))
            flattened = None
            if layer.relu:
                modules.append(nn.ReLU())
        elif isinstance(layer, ReLU):
            modules.append(nn.ReLU())
        elif isinstance(layer, MaxPool):
            modules.append(nn.MaxPool2d(layer.size))
        elif isinstance(layer, Flatten):
            modules.append(nn.Flatten())
            flattened = shape if any(isinstance(m, nn.Conv2d) for m in modules) else None
        shape = layer.output_shape(shape)
    net = nn.Sequential(*modules).double()
    with torch.no_grad():
        for ours, module, forth, _ in copies:
            module.weight.copy_(torch.tensor(forth(views[f"{ours}.weight"]).copy()))
            module.bias.copy_(torch.tensor(views[f"{ours}.bias"]))

    def gradients():
        for ours, module, _, back in copies:
            yield f"{ours}.weight", back(module.weight.grad).reshape(views[f"{ours}.weight"].shape).numpy()
            yield f"{ours}.bias", module.bias.grad.numpy()

    return net, gradients


@pytest.mark.parametrize(("name", "shape"), PLAIN)
def test_pytorch(name, shape):
    torch = pytest.importorskip("torch")
    model, params, grads, x, y = make(name, shape)
    net, gradients = torch_twin(torch, model, params)
    ctx = model.context(BATCH)
    logits = net(torch.tensor(x))
    np.testing.assert_allclose(model.logits(ctx, x), logits.detach().numpy(), rtol=1e-12, atol=1e-12)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y))
    loss.backward()
    assert model.gradient(ctx, x, y) == pytest.approx(loss.item(), rel=1e-12)
    ours = model.layout.views(grads)
    theirs = dict(gradients())
    assert ours.keys() == theirs.keys()
    for key, gradient in theirs.items():
        np.testing.assert_allclose(ours[key], gradient, rtol=1e-11, atol=1e-13, err_msg=key)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_gpu_is_the_host_to_rounding(name, shape, dtype):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    model, params, grads, x, y = make(name, shape)
    loss = model.gradient(model.context(BATCH), x, y)
    twin = build(name, shape, CLASSES, dtype, hidden=HIDDEN)
    device_grads = cupy.full(len(grads), np.nan, dtype)
    twin.bind(cupy.asarray(params, dtype), device_grads)
    ctx = twin.context(BATCH)
    seen = []
    device_x = cupy.asarray(x, dtype)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    assert twin.gradient(ctx, device_x, cupy.asarray(y), seen.append) == pytest.approx(loss, rel=tolerance)
    assert sum(len(part) for part in seen) == len(grads)
    np.testing.assert_allclose(device_grads.get(), grads, rtol=10 * tolerance, atol=tolerance)
    assert twin.evaluate(ctx, device_x, cupy.asarray(y))[0] == model.evaluate(model.context(1), x, y)[0]
    with pytest.raises(DataError, match="label 4 in row 2"):
        twin.gradient(ctx, device_x, cupy.asarray([0, 1, 4]))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_float32_is_float64_to_rounding(name, shape):
    model, params, grads, x, y = make(name, shape)
    loss = model.gradient(model.context(BATCH), x, y)
    small = build(name, shape, CLASSES, hidden=HIDDEN)
    small_grads = np.full(len(grads), np.nan, np.float32)
    small.bind(params.astype(np.float32), small_grads)
    got = small.gradient(small.context(BATCH), x.astype(np.float32), y.astype(np.uint8))
    assert got == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(small_grads, grads, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_on_ready_covers_the_vector_backwards_and_ranges_are_final(name, shape):
    model, _, grads, x, y = make(name, shape)
    ranges, parts = [], []

    def on_ready(ready):
        ranges.append(ready)
        parts.append(grads[ready.start : ready.stop].copy())

    model.gradient(model.context(BATCH), x, y, on_ready)
    assert ranges[0].stop == model.layout.size
    assert ranges[-1].start == 0
    assert all(later.stop == earlier.start for earlier, later in itertools.pairwise(ranges))
    assert len(ranges) == {"softmax": 1, "mlp": 2, "cnn": 4, "resmlp": 6}[name]
    np.testing.assert_array_equal(np.concatenate(parts[::-1]), grads)
    for gap in model.layout.padding:
        assert not grads[gap.start : gap.stop].any()


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_two_contexts_alive_and_rebound_gradients(name, shape):
    model, params, _, x, y = make(name, shape)
    other_x, other_y = x[::-1].copy() * 2 - 1, np.array([2, 2, 0])
    expected = []
    for xs, ys in ((x, y), (other_x, other_y)):
        grads = np.empty_like(params)
        model.bind(params, grads)
        expected.append((model.gradient(model.context(BATCH), xs, ys), grads))
    one, two = model.context(BATCH), model.context(N)
    logits = [model.forward(one, x), model.forward(two, other_x)]
    for ctx, dy, ys, (loss, grads) in zip((one, two), logits, (y, other_y), expected, strict=True):
        got = np.full_like(params, np.nan)
        model.bind(params, got)
        assert softmax_cross_entropy(dy, ys, 1 / N)[0] / N == loss
        assert model.backward(ctx, dy) is None
        np.testing.assert_array_equal(got, grads)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_any_number_of_samples_up_to_the_context(name, shape):
    model, params, _, x, y = make(name, shape)
    ctx = model.context(N)
    mean = np.zeros_like(params)
    losses = []
    for i in range(N):
        grads = np.empty_like(params)
        model.bind(params, grads)
        losses.append(model.gradient(ctx, x[i : i + 1], y[i : i + 1]))
        mean += grads / N
    model.bind(params, grads)
    assert model.gradient(ctx, x.reshape(N, -1), y) == pytest.approx(np.mean(losses), rel=1e-12)
    np.testing.assert_allclose(grads, mean, rtol=1e-10, atol=1e-13)


def test_rebind_uses_the_new_parameters_and_leaves_the_old():
    model, params, grads, x, y = make("mlp", (7,))
    ctx = model.context(BATCH)
    first = model.gradient(ctx, x, y)
    kept, kept_grads = params.copy(), grads.copy()
    model.bind(params * 2, np.empty_like(grads))
    assert model.gradient(ctx, x, y) != first
    np.testing.assert_array_equal(params, kept)
    np.testing.assert_array_equal(grads, kept_grads)
    model.bind(params, grads)
    assert model.gradient(ctx, x, y) == first


def test_evaluate_in_chunks():
    model, _, _, _, _ = make("mlp", (7,))
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((23, 7)), rng.integers(0, CLASSES, 23)
    z = np.array(model.logits(model.context(23), x))
    correct, loss = model.evaluate(model.context(5), x, y)
    assert correct == (z.argmax(axis=1) == y).sum()
    power = np.exp(z)
    assert loss == pytest.approx(-np.log(power[np.arange(23), y] / power.sum(axis=1)).sum(), rel=1e-12)


@pytest.mark.parametrize(("name", "shape"), [("softmax", (1, 28, 28)), ("mlp", (1, 28, 28)), ("cnn", (3, 28, 28))])
def test_a_step_allocates_nothing_of_an_arrays_size(name, shape):
    model = build(name, shape, 10)
    params = model.init(0)
    model.bind(params, np.empty_like(params))
    ctx = model.context(64)
    x = np.random.default_rng(0).standard_normal((64, *shape)).astype(np.float32)
    y = np.arange(64) % 10
    for n in (64, 63):
        model.gradient(ctx, x[:n], y[:n])
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        for n in (64, 63, 64):
            model.gradient(ctx, x[:n], y[:n], lambda ready: None)
            model.evaluate(ctx, x[:n], y[:n])
        peak = tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()
    assert peak < 8192  # the smallest activation, of 64 x 10, has 2560 bytes; objects for views are the rest


def test_building_imports_neither_mpi_nor_numba_nor_cupy():
    code = (
        "import sys; from psgd.nn.models import build; m = build('cnn', (1, 8, 8), 10); m.bind(m.init(0)); "
        "m.context(2); print([x for x in ('numba', 'cupy', 'mpi4py') if x in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"


def test_first_layers_input_gradient_has_no_buffer():
    model = build("cnn", (2, 8, 8), 10)
    states = model.context(4).states
    assert states[0].dx is None
    assert states[1].dpadded is None
    assert states[4].dpadded is not None
    assert build("mlp", (8,), 10).context(4).states[1].dx is None


def test_training_reaches_what_can_be_learned():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 1, 8, 8)).astype(np.float32)
    y = (x[:, 0, :4].sum(axis=(1, 2)) > x[:, 0, 4:].sum(axis=(1, 2))).astype(np.int64)
    for name in (name for name, entry in MODELS.items() if not entry.tokens):
        model = build(name, (1, 8, 8), 2)
        params = model.init(0)
        grads = np.empty_like(params)
        model.bind(params, grads)
        ctx = model.context(64)
        for step in range(240):
            part = slice(step % 4 * 64, step % 4 * 64 + 64)
            model.gradient(ctx, x[part], y[part])
            params -= np.float32(0.1) * grads
            if step % 20 == 19 and model.evaluate(ctx, x, y)[0] >= 0.97 * 256:
                break
        else:
            pytest.fail(f"{name} has not reached it")
