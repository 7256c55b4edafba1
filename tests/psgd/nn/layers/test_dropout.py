"""Dropout: the same bits however the batch is cut, backward by the same draw, nothing in evaluation, and on a GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import Run, finite_difference

from psgd.kernels.errors import UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.residual import Residual
from psgd.nn.stage import Stage

SHAPE = (5, 6)
N = 7


def make(dtype=np.float64):
    model = Model([Dropout(0.3), Residual((Linear(6), Dropout(0.5))), Linear(4), Dropout(0.2), *tail()], SHAPE, dtype)
    params = np.random.default_rng(0).standard_normal(model.layout.size).astype(dtype)
    grads = np.full_like(params, np.nan)
    model.bind(params, grads)
    rng = np.random.default_rng(1)
    return model, params, grads, rng.standard_normal((N, *SHAPE)).astype(dtype), rng.integers(3, size=N)


def tail():
    from psgd.nn.reshape import Flatten

    return Flatten(), Linear(3)


@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_each_element_is_dropped_or_scaled_and_so_is_its_gradient(on_gpu):
    run = Run(Dropout(0.25), SHAPE, cupy() if on_gpu else np)
    run.state.draws.begin(3, np.array([4, 0, 9]))
    y, dx = (values.get() if on_gpu else values for values in run.backward())
    x, dy = (values.get() if on_gpu else values for values in (run.x, run.dy))
    kept = y != 0
    assert 0 < kept.mean() < 1
    np.testing.assert_allclose(y, np.where(kept, x / 0.75, 0), rtol=1e-15)
    np.testing.assert_allclose(dx, np.where(kept, dy / 0.75, 0), rtol=1e-15)


def test_a_gradient_that_is_a_part_of_a_larger_array_is_dropped_too():
    run = Run(Dropout(0.25), SHAPE)
    run.state.draws.begin(3, np.array([4, 0, 9]))
    _, dx = run.backward()
    wide = np.zeros((*run.dy.shape[:2], 2 * SHAPE[1]))
    wide[..., : SHAPE[1]] = run.dy
    np.testing.assert_array_equal(run.layer.backward(run.state, wide[..., : SHAPE[1]], (), ()), dx)


def test_finite_differences():
    run = Run(Dropout(0.4), SHAPE)
    run.state.draws.begin(3, np.array([4, 0, 9]))
    _, dx = run.backward()
    np.testing.assert_allclose(dx, finite_difference(run, run.x), rtol=1e-7, atol=1e-8)


def test_the_same_bits_however_the_batch_is_cut_and_ordered():
    layer = Dropout(0.5)
    stage = Stage([Residual((layer,)), layer], SHAPE)
    stage.bind(np.zeros(0, np.float32))
    x = np.random.default_rng(0).standard_normal((N, *SHAPE)).astype(np.float32)
    samples = np.array([11, 2, 5, 900, 0, 7, 3])
    ctx = stage.context(N)
    ctx.draw(8, samples)
    whole = stage.forward(ctx, x).copy()
    for parts in ([[0, 1, 2], [3, 4, 5], [6]], [[6, 3], [0, 5, 1, 4], [2]]):
        for rows in parts:
            other = stage.context(4)
            other.draw(8, samples[rows])
            np.testing.assert_array_equal(stage.forward(other, x[rows]), whole[rows])
    last = stage.cut(1, 2)  # a part of the whole model
    last.bind(np.zeros(0, np.float32))
    there, here = last.context(N), stage.cut(0, 1)
    here.bind(np.zeros(0, np.float32))
    first = here.context(N)
    for context in (first, there):
        context.draw(8, samples)
    np.testing.assert_array_equal(last.forward(there, here.forward(first, x)), whole)
    ctx.draw(9, samples)
    assert (stage.forward(ctx, x) != whole).any()


def test_layers_draw_each_for_itself():
    stage = Stage([Residual((Dropout(0.5),)), Residual((Dropout(0.5),)), Dropout(0.5)], (64,))
    stage.bind(np.zeros(0, np.float32))
    ctx = stage.context(1)
    ctx.draw(1, np.array([0]))
    x = np.ones((1, 64), np.float32)
    masks = [layer.forward(state, x, ()) > 1 for layer, state in zip(stage.layers, ctx.states, strict=True)]
    assert len({mask.tobytes() for mask in masks}) == 3


def test_microbatches_add_up_to_the_gradient_of_the_batch():
    model, _, grads, x, y = make()
    ctx, part = model.context(N), model.context(3)
    ctx.draw(5, np.arange(N))
    loss = model.gradient(ctx, x, y)
    whole = grads.copy()
    total = 0.0
    for start in range(0, N, 3):
        rows = np.arange(start, min(start + 3, N))
        part.draw(5, rows)
        total += model.gradient(part, x[rows], y[rows], batch_size=N, accumulate=start > 0)
    assert total == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(grads, whole, rtol=1e-10, atol=1e-12)


def test_evaluation_draws_nothing_and_training_goes_on_as_before():
    model, params, grads, x, y = make()
    ctx = model.context(N)
    ctx.draw(5, np.arange(N))
    loss = model.gradient(ctx, x, y)
    plain = Model([Residual((Linear(6),)), Linear(4), *tail()], SHAPE, np.float64)
    plain.bind(params)
    assert plain.evaluate(plain.context(N), x, y) == model.evaluate(ctx, x, y)
    assert model.gradient(ctx, x, y) == loss
    assert np.isfinite(grads).all()


def test_a_gradient_without_a_draw_is_refused():
    model, _, _, x, y = make()
    with pytest.raises(UsageError, match=r"needs ctx.draw\(key, samples\) before the forward pass"):
        model.gradient(model.context(N), x, y)


def test_a_rate_of_0_drops_nothing():
    run = Run(Dropout(0.0), SHAPE)
    run.state.draws.begin(3, np.arange(3))
    for got, wanted in zip(run.backward(), (run.x, run.dy), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_other_rates_are_refused(rate):
    with pytest.raises(UsageError, match="rate from 0 to less than 1"):
        Dropout(rate).output_shape(SHAPE)
