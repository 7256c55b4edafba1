"""The LSTM alone: the formulas by float64 NumPy, finite differences, PyTorch, and the same on a GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import Run, finite_difference

from psgd.kernels.errors import UsageError
from psgd.nn.layers.lstm import LSTM
from psgd.nn.stage import Stage

CASES = [
    (LSTM(3), (5, 4)),
    (LSTM(3, sequence=True), (5, 4)),
    (LSTM(1), (1, 1)),
    (LSTM(4, sequence=True), (1, 2)),
    (LSTM(2), (7, 1)),
    (LSTM(5, sequence=True), (2, 3)),
]
EACH = pytest.mark.parametrize(("layer", "shape"), CASES, ids=str)


def formulas(run):
    """The layer's output, sample by sample and step by step."""
    weight, over_hidden, bias = run.params
    found = []
    for sample in run.x:
        h = c = np.zeros(run.layer.units)
        each = []
        for row in sample:
            i, f, g, o = np.split(row @ weight + h @ over_hidden + bias, 4)
            i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            each.append(h)
        found.append(each if run.layer.sequence else h)
    return np.array(found)


@EACH
def test_the_formulas(layer, shape):
    run = Run(layer, shape)
    np.testing.assert_allclose(run.forward(), formulas(run), rtol=1e-12, atol=1e-14)


@EACH
def test_finite_differences(layer, shape):
    run = Run(layer, shape)
    kept = run.x.copy()
    _, *gradients = run.backward()
    np.testing.assert_array_equal(run.x, kept)
    for array, gradient in zip((run.x, *run.params), gradients, strict=True):
        np.testing.assert_allclose(gradient, finite_difference(run, array), rtol=1e-7, atol=1e-8)


@EACH
def test_pytorch(layer, shape):
    torch = pytest.importorskip("torch")
    run = Run(layer, shape)
    weight, over_hidden, bias = run.params
    twin = torch.nn.LSTM(shape[1], layer.units, batch_first=True).double()
    with torch.no_grad():
        twin.weight_ih_l0.copy_(torch.tensor(weight.T))
        twin.weight_hh_l0.copy_(torch.tensor(over_hidden.T))
        twin.bias_ih_l0.copy_(torch.tensor(bias))
        twin.bias_hh_l0.zero_()
    x = torch.tensor(run.x, requires_grad=True)
    every, (last, _) = twin(x)
    y = every if layer.sequence else last[0]
    y.backward(torch.tensor(run.dy))
    theirs = (y.detach(), x.grad, twin.weight_ih_l0.grad.T, twin.weight_hh_l0.grad.T, twin.bias_ih_l0.grad)
    for ours, expected in zip(run.backward(), theirs, strict=True):
        np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-11, atol=1e-12)


@EACH
def test_second_pass_on_the_same_buffers_is_the_same_and_float32_is_float64_to_rounding(layer, shape):
    run, again = Run(layer, shape), Run(layer, shape)
    first = [a.copy() for a in run.backward()]
    again.state = run.state
    rounded = Run(layer, shape, dtype=np.float32).backward()
    for a, b, c in zip(first, again.backward(), rounded, strict=True):
        np.testing.assert_array_equal(a, b)
        assert c.dtype == np.float32
        np.testing.assert_allclose(c, a, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@EACH
def test_gpu_is_the_host_to_rounding(layer, shape, dtype):
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for host, device in zip(Run(layer, shape).backward(), Run(layer, shape, cupy(), dtype).backward(), strict=True):
        assert device.dtype == dtype
        np.testing.assert_allclose(device.get(), host, rtol=tolerance, atol=tolerance)


@EACH
def test_an_unwanted_gradient_is_not_computed_and_the_output_may_be_overwritten(layer, shape):
    run, spoiled = Run(layer, shape), Run(layer, shape, wants_dx=False)
    _, _, *expected = run.backward()
    grads = tuple(np.full_like(a, np.nan) for a in spoiled.params)
    y = layer.forward(spoiled.state, spoiled.x, spoiled.params)
    y[...] = spoiled.dy  # as a loss does
    assert layer.backward(spoiled.state, y, spoiled.params, grads) is None
    for got, wanted in zip(grads, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_large_sums_saturate_the_gates_and_stay_finite():
    run = Run(LSTM(3, sequence=True), (4, 2), dtype=np.float32)
    run.x *= 1e4
    for values in run.backward():
        assert np.isfinite(values).all()


def test_it_begins_with_an_open_forget_gate_and_pytorchs_forms():
    stage = Stage([LSTM(3)], (5, 4))
    vector = stage.init(2)
    views = stage.layout.views(vector)
    assert list(views) == ["lstm1.input", "lstm1.hidden", "lstm1.bias"]
    np.testing.assert_array_equal(views["lstm1.bias"], [0] * 3 + [1] * 3 + [0] * 6)
    assert np.abs(views["lstm1.input"]).max() <= np.sqrt(6 / 7) and np.abs(views["lstm1.hidden"]).max() <= 1
    assert {name: form.shape for name, form in stage.layout.torch} == {"lstm1.input": (12, 4), "lstm1.hidden": (12, 3)}


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (LSTM(3), (9,), "steps, features"),
        (LSTM(3), (2, 3, 4), "steps, features"),
        (LSTM(0), (2, 3), "at least one unit"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(layer, shape, message):
    with pytest.raises(UsageError, match=message):
        layer.output_shape(shape)


@EACH
def test_the_weights_gradients_can_wait(layer, shape):
    run, halves = Run(layer, shape), Run(layer, shape)
    _, dx, *expected = run.backward()
    halves.forward()
    grads = tuple(np.full_like(a, np.nan) for a in halves.params)
    np.testing.assert_array_equal(layer.backward_input(halves.state, halves.dy.copy(), halves.params, grads), dx)
    assert [i for i, each in enumerate(grads) if np.isnan(each).all()] == list(layer.late(shape))
    layer.backward_weights(halves.state, grads)
    for got, wanted in zip(grads, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
