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
        assert captured.done() and float(loss) == value
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
