"""A stage whose passes are recorded, on a simulated GPU: every order of sizes and kinds of passes has the same bits."""

import numpy as np
import pytest
from harness.fake_gpu import FakeGpu

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layers.lstm import LSTM
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten
from psgd.parallel.stages.captured_stage import CapturedStage

MODELS = {
    "conv": Model((Conv2D(3, 3), ReLU(), MaxPool(2), Flatten(), Linear(4, relu=True), Linear(3)), (6, 6, 2)),
    "lstm": Model((LSTM(4, sequence=True), LSTM(3), Linear(3)), (3, 2)),
}


def both(model):
    """The stage and its captured one, on vectors of their own."""
    gpu, plain = FakeGpu(), model.cut(0, len(model.layers))
    captured = CapturedStage(model.cut(0, len(model.layers)), gpu, 4, last=True, captures=lambda: True)
    gpu.stages = [captured]
    vectors = []
    for each in (plain, captured):
        grads = np.full(model.layout.size, np.nan, np.float32)
        each.bind(model.init(1), grads)
        vectors.append(grads)
    return gpu, plain, captured, vectors


@pytest.mark.parametrize("name", MODELS)
def test_any_order_of_passes(name):
    model, rng = MODELS[name], np.random.default_rng(3)
    gpu, plain, captured, (expected, grads) = both(model)
    mine, theirs = captured.context(4, wants_dx=True), plain.context(4, wants_dx=True)
    for step, (n, halves, accumulate) in enumerate(
        [(4, False, False)] * 3
        + [(4, False, True), (2, True, False), (4, True, True), (3, False, True)]
        + [(4, True, True)] * 4
        + [(2, True, True), (4, False, True), (4, False, False), (4, True, False)] * 3
    ):
        x, y = rng.standard_normal((n, *model.input_shape)).astype(np.float32), rng.integers(0, 3, n)
        captured.begin()
        outputs = captured.forward(mine, x), plain.forward(theirs, x)
        assert np.array_equal(*outputs), step
        dy, loss = captured.loss(mine, y, batch_size=7)
        there, value = plain.loss(theirs, y, batch_size=7)
        assert not captured.done() and captured.done() and float(loss) == value
        if halves:
            dx = captured.backward_input(mine, dy, accumulate), plain.backward_input(theirs, there, accumulate)
            captured.backward_weights(mine, None, accumulate)
            plain.backward_weights(theirs, None, accumulate)
        else:
            dx = captured.backward(mine, dy, None, accumulate), plain.backward(theirs, there, None, accumulate)
        assert np.array_equal(*dx) and np.array_equal(grads, expected), step
        if step % 3 == 1:
            assert captured.evaluate(mine, x[:1], y[:1], None) == plain.evaluate(theirs, x[:1], y[:1])
    assert gpu.launched > 30


def test_other_vectors_and_ranges_that_are_ready():
    model = MODELS["conv"]
    _, plain, captured, (_, grads) = both(model)
    ctx, there = captured.context(2), plain.context(2)
    x, y = np.ones((2, *model.input_shape), np.float32), np.array([0, 2])
    for turn in range(6):
        params, ready = model.init(turn % 2), []
        vectors = [np.empty_like(params), np.empty_like(params)]
        plain.bind(params, vectors[0])
        captured.bind(params, vectors[1] if turn < 3 else grads)
        for stage, mine, told in ((captured, ctx, ready.append), (plain, there, None)):
            stage.forward(mine, x)
            dy, _ = stage.loss(mine, y, batch_size=2)
            stage.backward(mine, dy, told)
        assert np.array_equal(vectors[1] if turn < 3 else grads, vectors[0])
        assert ready[0].stop == len(params) and ready[-1].start == 0


def test_weights_that_lie_elsewhere_in_backward():
    model, rng = MODELS["lstm"], np.random.default_rng(5)
    gpu, plain, captured, (expected, grads) = both(model)
    ctx, there = captured.context(4, wants_dx=True), plain.context(4, wants_dx=True)
    newest, older = model.init(1), [np.empty(model.layout.size, np.float32) for _ in range(2)]
    for step in range(40):
        x, y = rng.standard_normal((4, *model.input_shape)).astype(np.float32), rng.integers(0, 3, 4)
        # As in a pipeline that is never empty: a step comes between the passes, with the older weights kept.
        copy = older[step * (step // 3) % 2]
        copy[...] = newest
        plain.bind(copy, expected)
        captured.bind(newest, grads)
        captured.begin()
        assert np.array_equal(captured.forward(ctx, x), plain.forward(there, x))
        newest += np.float32(0.01)
        captured.bind(copy, grads)
        dy, _ = captured.loss(ctx, y, batch_size=4)
        dx = captured.backward_input(ctx, dy, step % 4 > 0)
        dy, _ = plain.loss(there, y, batch_size=4)
        assert np.array_equal(dx, plain.backward_input(there, dy, step % 4 > 0)), step
        captured.backward_weights(ctx, None, step % 4 > 0)
        plain.backward_weights(there, None, step % 4 > 0)
        assert np.array_equal(grads, expected), step
    assert gpu.launched > 80
    captured.turn()
    assert captured._stage._params[0][0].ctypes.data == copy.ctypes.data


def test_vectors_of_another_dtype_are_refused():
    model = MODELS["conv"]
    _, _, captured, _ = both(model)
    with pytest.raises(UsageError, match="bind: params: expected float32"):
        captured.bind(model.init(1).astype(np.float64), None)


def test_wrong_samples_are_refused_as_by_the_stage():
    _, _, captured, _ = both(MODELS["conv"])
    ctx = captured.context(2)
    with pytest.raises(UsageError, match="model: x: expected float32"):
        captured.forward(ctx, np.ones((2, 6, 6, 2)))
    with pytest.raises(UsageError, match="model: expected samples of shape"):
        captured.forward(ctx, np.ones((2, 5), np.float32))
    captured.forward(ctx, np.ones((2, 6, 6, 2), np.float32))
    with pytest.raises(UsageError, match="y: expected integers"):
        captured.loss(ctx, np.ones((2, 3), np.int64), batch_size=2)
