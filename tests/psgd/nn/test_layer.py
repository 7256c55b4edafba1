"""Every layer alone: finite differences, PyTorch, and the same on a GPU."""

import numpy as np
import pytest
from harness.layers import Run, finite_difference

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layers.attention import Attention, Heads
from psgd.nn.layers.embedding import Embedding, Positions, Unembedding
from psgd.nn.layers.gelu import GELU
from psgd.nn.layers.layernorm import LayerNorm
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten, RowTokens, Transpose
from psgd.nn.residual import Residual

CASES = [
    (Linear(5), (7,)),
    (Linear(1), (1,)),
    (Linear(5, relu=True), (7,)),
    (ReLU(), (5, 3, 2)),
    (Flatten(), (5, 3, 2)),
    (ChannelsLast(), (3, 5, 4)),
    (ChannelsLast(), (1, 5, 4)),
    (MaxPool(2), (5, 7, 3)),
    (MaxPool(3), (9, 4, 1)),
    (Conv2D(4, 3), (7, 5, 3)),
    (Conv2D(3, 1), (4, 5, 2)),
    (Conv2D(4, 3, padding=1), (5, 6, 2)),
    (Conv2D(2, 3, stride=2, padding=1), (7, 8, 3)),
    (Conv2D(3, 2, stride=3), (8, 7, 1)),
    (Conv2D(2, 5, stride=2, padding=3), (6, 9, 2)),
    (Linear(5), (4, 7)),
    (Linear(3, relu=True), (2, 3, 4)),
    (Transpose(), (5, 3)),
    (MeanPool(), (5, 3)),
    (MeanPool(), (1, 1)),
    (RowTokens(), (4, 5, 3)),
    (Positions(), (5, 3)),
    (Unembedding(4, tied=None), (5, 3)),
    (LayerNorm(), (7,)),
    (LayerNorm(0.1), (5, 8)),
    (LayerNorm(), (2, 3, 37)),
    (GELU(), (5, 3, 2)),
    (Heads(1), (5, 6)),
    (Heads(3), (6, 27)),
    (Attention(1), (1, 3)),
    (Attention(2), (5, 6)),
    (Residual((Attention(3),)), (4, 6)),
    (Residual((LayerNorm(), Linear(9), GELU(), Linear(5))), (4, 5)),
    (Residual((Linear(7),)), (7,)),
    (Residual((Linear(4, relu=True), Linear(7))), (7,)),
    (Residual((Transpose(), Linear(5), Transpose())), (5, 3)),
    (Residual((Linear(3), ReLU())), (5, 3)),
    (Residual((ReLU(),)), (5, 3, 2)),
    (Residual((ReLU(), Conv2D(2, 3, padding=1), ReLU())), (5, 4, 2)),
    (Residual((Residual((Linear(3, relu=True), Linear(3))), Linear(3))), (5, 3)),
]
IDS = [f"{layer}-{shape}" for layer, shape in CASES]


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=IDS)
def test_finite_differences(layer, shape):
    run = Run(layer, shape)
    kept = run.x.copy()
    _, *gradients = run.backward()
    np.testing.assert_array_equal(run.x, kept)
    for array, gradient in zip((run.x, *run.params), gradients, strict=True):
        assert gradient.shape == array.shape
        np.testing.assert_allclose(gradient, finite_difference(run, array), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=IDS)
def test_second_pass_on_the_same_buffers_is_the_same(layer, shape):
    run = Run(layer, shape)
    first = [a.copy() for a in run.backward()]
    other = Run(layer, shape)
    other.state = run.state
    for a, b in zip(first, other.backward(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=IDS)
def test_float32_is_float64_to_rounding(layer, shape):
    exact, rounded = Run(layer, shape).backward(), Run(layer, shape, dtype=np.float32).backward()
    for a, b in zip(exact, rounded, strict=True):
        assert b.dtype == np.float32
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


def torch_forward(torch, layer, x, params):
    """The same layer by PyTorch, in our shapes and orders; takes its parameters off the front of `params`."""
    f = torch.nn.functional
    first, last = (0, 3, 1, 2), (0, 2, 3, 1)
    if isinstance(layer, Linear):
        y = x @ params.pop(0) + params.pop(0)
        return f.relu(y) if layer.relu else y
    if isinstance(layer, ReLU):
        return f.relu(x)
    if isinstance(layer, Flatten):
        return x.flatten(1)
    if isinstance(layer, RowTokens):
        return x.flatten(2)
    if isinstance(layer, Transpose):
        return x.transpose(1, 2)
    if isinstance(layer, MeanPool):
        return x.mean(1)
    if isinstance(layer, ChannelsLast):
        return x.permute(*last)
    if isinstance(layer, MaxPool):
        return f.max_pool2d(x.permute(*first), layer.size).permute(*last)
    if isinstance(layer, Residual):
        y = x
        for inner in layer.layers:
            y = torch_forward(torch, inner, y, params)
        return x + y
    if isinstance(layer, GELU):
        return f.gelu(x, approximate="tanh")
    if isinstance(layer, Heads):
        q, k, v = x.reshape(*x.shape[:2], layer.heads, 3, -1).permute(3, 0, 2, 1, 4)
        return f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    if isinstance(layer, Attention):
        y = x
        for inner in layer.parts(x.shape[1:]):
            y = torch_forward(torch, inner, y, params)
        return y
    if isinstance(layer, Positions):
        return x + params.pop(0)
    if isinstance(layer, Unembedding):
        return f.linear(x, params.pop(0))
    if isinstance(layer, LayerNorm):
        return f.layer_norm(x, x.shape[-1:], params.pop(0), params.pop(0), layer.epsilon)
    w, b = params.pop(0), params.pop(0)
    return f.conv2d(x.permute(*first), w.permute(3, 2, 0, 1), b, layer.stride, layer.padding).permute(*last)


def torch_result(torch, run):
    """Forward and gradients of the same layer by PyTorch, in our shapes and orders."""
    x, *params = (torch.tensor(a, requires_grad=True) for a in (run.x, *run.params))
    y = torch_forward(torch, run.layer, x, list(params))
    y.backward(torch.tensor(run.dy))
    return [y.detach().numpy(), *(a.grad.numpy() for a in (x, *params))]


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=IDS)
def test_pytorch(layer, shape):
    torch = pytest.importorskip("torch")
    run = Run(layer, shape)
    for ours, theirs in zip(run.backward(), torch_result(torch, run), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("layer", "shape"), CASES, ids=IDS)
def test_gpu_is_the_host_to_rounding(layer, shape, dtype):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for host, device in zip(Run(layer, shape).backward(), Run(layer, shape, cupy, dtype).backward(), strict=True):
        assert device.dtype == dtype
        np.testing.assert_allclose(device.get(), host, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Linear(5), (7,)),
        (Linear(5), (4, 7)),
        (Conv2D(4, 3), (5, 6, 2)),
        (Conv2D(4, 3, padding=1), (5, 6, 2)),
        (Residual((Transpose(), Linear(5), Transpose())), (5, 3)),
        (Residual((Linear(4, relu=True), Linear(7))), (7,)),
    ],
    ids=str,
)
def test_unwanted_input_gradient_is_not_computed(layer, shape):
    run = Run(layer, shape, wants_dx=False)
    _, dx, *grads = run.backward()
    assert dx is None
    for unwanted, wanted in zip(grads, Run(layer, shape).backward()[2:], strict=True):
        np.testing.assert_array_equal(unwanted, wanted)


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=IDS)
def test_what_backward_does_not_read_may_be_overwritten(layer, shape):
    run, spoiled = Run(layer, shape), Run(layer, shape)
    if layer.reads_output:
        assert isinstance(layer, (ReLU, Flatten, ChannelsLast, RowTokens)) or layer.relu
        return
    grads = tuple(np.full_like(a, np.nan) for a in spoiled.params)
    y = layer.forward(spoiled.state, spoiled.x, spoiled.params)
    y[...] = spoiled.dy  # as a loss does
    dx = layer.backward(spoiled.state, y, spoiled.params, grads)
    for got, expected in zip((dx, *grads), run.backward()[1:], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (Linear(3), (), "at least one axis"),
        (Linear(0), (2,), "at least one unit"),
        (Conv2D(3, 3), (9,), "images"),
        (Conv2D(3, 5), (4, 9, 1), "larger than the image 4 x 9"),
        (Conv2D(3, 5, stride=0), (9, 9, 1), "stride"),
        (Conv2D(3, 5, padding=-1), (9, 9, 1), "padding"),
        (MaxPool(2), (1, 9, 1), "larger than the image 1 x 9"),
        (MaxPool(16), (20, 20, 1), "1 to 15"),
        (MaxPool(2), (9,), "images"),
        (ChannelsLast(), (9,), "channels, height, width"),
        (Transpose(), (9,), "tokens, features"),
        (Transpose(), (2, 3, 4), "tokens, features"),
        (MeanPool(), (9,), "tokens, features"),
        (RowTokens(), (9, 4), "height, width, channels"),
        (Positions(), (9,), "tokens, features"),
        (Heads(2), (4, 9), r"samples of shape \(4, 9\) and 2 heads"),
        (Heads(1), (9,), "tokens, features"),
        (Attention(4), (5, 6), "multiple of its heads"),
        (Attention(0), (5, 6), "0 heads"),
        (Embedding(0, 3), (9,), "at least 1 x 1, got 0 x 3"),
        (Unembedding(0), (9,), "vocabulary of at least 1"),
        (LayerNorm(), (), "at least one axis"),
        (LayerNorm(0.0), (9,), "epsilon above 0"),
        (Residual((Linear(4),)), (5,), r"keep the samples' shape \(5,\), these return \(4,\)"),
        (Residual(()), (5,), "keep the samples' shape"),
        (Residual((Flatten(), Linear(3))), (3, 1), "keep the samples' shape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(layer, shape, message):
    with pytest.raises(UsageError, match=message):
        layer.output_shape(shape)
