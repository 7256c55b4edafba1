"""Stages: a NumPy oracle with another loss, stages in a row, the input's gradient, gradients that are added."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten, RowTokens, Transpose
from psgd.nn.residual import Residual
from psgd.nn.stage import Stage

TOKENS, FEATURES, WIDTH, N = 5, 4, 3, 7
MIXER = (
    Linear(WIDTH),
    Residual((Transpose(), Linear(TOKENS), Transpose())),
    Residual((Linear(6, relu=True), Linear(WIDTH))),
    MeanPool(),
    Linear(2),
)
CONVOLUTIONS = (ChannelsLast(), Conv2D(4, 3, padding=1), MaxPool(2), ReLU(), RowTokens(), Residual((Linear(8),)))
CASES = [(MIXER, (TOKENS, FEATURES)), (CONVOLUTIONS, (2, 4, 5)), ((Flatten(), Linear(3, relu=True)), (5, 4))]
ON = pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)], ids=["host", "gpu"])
WHERE = pytest.mark.parametrize(("layers", "shape"), CASES, ids=["mixer", "convolutions", "linear"])


class Run:
    """A bound stage, more buffers than samples, and samples for it."""

    def __init__(self, layers, shape, xp=np, dtype=np.float64):
        rng = np.random.default_rng(4)
        self.stage, self.xp = Stage(layers, shape, dtype), xp
        self.params = xp.asarray(0.4 * rng.standard_normal(self.stage.layout.size), dtype)
        self.grads = xp.full_like(self.params, np.nan)
        self.stage.bind(self.params, self.grads)
        self.x = xp.asarray(rng.standard_normal((N, *shape)), dtype)
        self.dy = xp.asarray(rng.standard_normal((N, *self.stage.output_shape)), dtype)
        self.ctx = self.stage.context(N + 2, wants_dx=True)

    def gradient(self, part=slice(None), **options):
        """Returns the input's gradient; the parameters' is in grads."""
        self.stage.forward(self.ctx, self.x[part])
        return self.stage.backward(self.ctx, self.dy[part].copy(), **options)


def mixer_oracle(views, x, target):
    """Half the squared error of the mixer by NumPy: loss, the gradient of x, and the gradients by name."""
    v, over = views, "nti,nto->io"
    h = x @ v["linear1.weight"] + v["linear1.bias"]
    w = v["residual1.linear1.weight"]
    z = h + np.einsum("nsf,st->ntf", h, w) + v["residual1.linear1.bias"][:, None]
    r = np.maximum(z @ v["residual2.linear1.weight"] + v["residual2.linear1.bias"], 0)
    u = z + r @ v["residual2.linear2.weight"] + v["residual2.linear2.bias"]
    mean = u.mean(axis=1)
    error = mean @ v["linear2.weight"] + v["linear2.bias"] - target
    du = np.repeat((error @ v["linear2.weight"].T)[:, None] / TOKENS, TOKENS, axis=1)
    dr = np.where(r > 0, du @ v["residual2.linear2.weight"].T, 0)
    dz = du + dr @ v["residual2.linear1.weight"].T
    dh = dz + np.einsum("ntf,st->nsf", dz, w)
    return (error**2).sum() / 2, dh @ v["linear1.weight"].T, {
        "linear1.weight": np.einsum(over, x, dh), "linear1.bias": dh.sum(axis=(0, 1)),
        "residual1.linear1.weight": np.einsum("nsf,ntf->st", h, dz), "residual1.linear1.bias": dz.sum(axis=(0, 2)),
        "residual2.linear1.weight": np.einsum(over, z, dr), "residual2.linear1.bias": dr.sum(axis=(0, 1)),
        "residual2.linear2.weight": np.einsum(over, r, du), "residual2.linear2.bias": du.sum(axis=(0, 1)),
        "linear2.weight": mean.T @ error, "linear2.bias": error.sum(axis=0),
    }  # fmt: skip


@ON
def test_numpy_with_another_loss(on_gpu):
    run = Run(MIXER, (TOKENS, FEATURES), cupy() if on_gpu else np)
    host = Run(MIXER, (TOKENS, FEATURES))
    loss, dx, expected = mixer_oracle(host.stage.layout.views(host.params), host.x, host.dy)
    y = run.stage.forward(run.ctx, run.x)
    y -= run.dy  # half the squared error's gradient, in the output's own buffer
    assert float((y**2).sum()) / 2 == pytest.approx(loss, rel=1e-12)
    got = run.stage.backward(run.ctx, y)
    np.testing.assert_allclose(got.get() if on_gpu else got, dx, rtol=1e-11, atol=1e-13)
    views = run.stage.layout.views(run.grads.get() if on_gpu else run.grads)
    assert views.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(views[name], gradient, rtol=1e-11, atol=1e-13, err_msg=name)


@WHERE
def test_finite_differences(layers, shape):
    run = Run(layers, shape)
    dx = run.gradient().copy()
    for array, gradient in ((run.params, run.grads.copy()), (run.x, dx)):
        for at in np.random.default_rng(0).permutation(array.size)[:120]:
            place, eps = np.unravel_index(at, array.shape), 1e-6
            kept = array[place]
            sums = []
            for value in (kept + eps, kept - eps):
                array[place] = value
                sums.append((run.stage.forward(run.ctx, run.x) * run.dy).sum())
            array[place] = kept
            assert gradient[place] == pytest.approx((sums[0] - sums[1]) / (2 * eps), rel=1e-6, abs=1e-8), place


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@WHERE
def test_gpu_is_the_host_to_rounding(layers, shape, dtype):
    host, device = Run(layers, shape, dtype=dtype), Run(layers, shape, cupy(), dtype)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for accumulate in (False, True):
        dx = host.gradient(accumulate=accumulate)
        there = device.gradient(accumulate=accumulate)
        np.testing.assert_allclose(there.get(), dx, rtol=10 * tolerance, atol=tolerance)
        np.testing.assert_allclose(device.grads.get(), host.grads, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_two_stages_in_a_row_are_one(cut):
    whole = Run(MIXER, (TOKENS, FEATURES))
    dx = whole.gradient()
    first = Stage(MIXER[:cut], (TOKENS, FEATURES), np.float64)
    second = Stage(MIXER[cut:], first.output_shape, np.float64)
    at = first.layout.size
    assert at + second.layout.size == whole.stage.layout.size
    grads = np.full_like(whole.grads, np.nan)
    first.bind(whole.params[:at], grads[:at])
    second.bind(whole.params[at:], grads[at:])
    ours, theirs = first.context(N, wants_dx=True), second.context(N, wants_dx=True)
    second.forward(theirs, first.forward(ours, whole.x).copy())
    got = first.backward(ours, second.backward(theirs, whole.dy.copy()).copy())
    np.testing.assert_array_equal(got, dx)
    np.testing.assert_array_equal(grads, whole.grads)


def test_a_stage_without_parameters_passes_gradients_on():
    stage = Stage([Transpose(), MeanPool()], (2, 3))
    stage.bind(np.empty(0, np.float32), np.empty(0, np.float32))
    ctx = stage.context(2, wants_dx=True)
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(stage.forward(ctx, x), x.mean(axis=2))
    dx = stage.backward(ctx, np.array([[3, 6], [9, 12]], np.float32), accumulate=True)
    np.testing.assert_array_equal(dx, np.repeat([[[1], [2]], [[3], [4]]], 3, axis=2))


@ON
@WHERE
def test_added_gradients_are_the_whole_batchs(layers, shape, on_gpu):
    xp = cupy() if on_gpu else np
    whole, parts = Run(layers, shape, xp), Run(layers, shape, xp)
    whole.gradient()
    twice = []
    for _ in range(2):
        parts.grads[...] = np.nan
        for part in (slice(0, 3), slice(3, 4), slice(4, N)):
            parts.gradient(part, accumulate=part.start > 0)
        twice.append(parts.grads.copy())
    xp.testing.assert_allclose(twice[0], whole.grads, rtol=1e-11, atol=1e-13)
    xp.testing.assert_array_equal(*twice)
    for gap in whole.stage.layout.padding:
        assert not parts.grads[gap.start : gap.stop].any()


@WHERE
def test_added_to_zeros_they_are_the_same_bits(layers, shape):
    over, added = Run(layers, shape), Run(layers, shape)
    dx = over.gradient().copy()
    added.grads.fill(0)
    np.testing.assert_array_equal(added.gradient(accumulate=True), dx)
    np.testing.assert_array_equal(added.grads, over.grads)


@WHERE
def test_ranges_are_ready_when_their_sum_is(layers, shape):
    run = Run(layers, shape)
    run.gradient()
    ranges, parts = [], []

    def on_ready(ready):
        ranges.append(ready)
        parts.append(run.grads[ready.start : ready.stop].copy())

    run.gradient(accumulate=True, on_ready=on_ready)
    assert (ranges[0].stop, ranges[-1].start) == (run.stage.layout.size, 0)
    assert all(later.stop == earlier.start for earlier, later in itertools.pairwise(ranges))
    np.testing.assert_array_equal(np.concatenate(parts[::-1]), run.grads)


def test_rebound_gradients_are_added_to():
    run = Run(MIXER, (TOKENS, FEATURES))
    run.gradient()
    once = run.grads.copy()
    run.gradient(accumulate=True)
    other = once.copy()
    run.stage.bind(run.params, other)
    run.gradient(accumulate=True)
    np.testing.assert_array_equal(other, run.grads)
    np.testing.assert_array_equal(other, once + once)


def test_unwanted_input_gradient():
    run = Run(MIXER, (TOKENS, FEATURES))
    run.gradient()
    kept = run.grads.copy()
    run.ctx = run.stage.context(N)
    assert run.gradient() is None
    np.testing.assert_array_equal(run.grads, kept)
    assert run.ctx.states[0].dx is None


def test_a_forward_pass_is_used_up_even_by_a_refused_backward():
    run = Run(MIXER, (TOKENS, FEATURES))
    run.stage.forward(run.ctx, run.x)
    with pytest.raises(UsageError, match=r"backward: dy: expected float64 \(7, 2\) on numpy, got float64 \(7, 1\)"):
        run.stage.backward(run.ctx, run.dy[:, :1])
    with pytest.raises(UsageError, match="forward pass"):
        run.stage.backward(run.ctx, run.dy)


def test_contexts_of_a_stage_and_of_a_model():
    stage, model = Stage([Linear(3)], (2,)), Model([Linear(3)], (2,))
    ours, theirs = stage.context(5), model.context(5)
    assert (ours.batch, ours.xp, ours.owner, len(ours.states), ours.wants_dx) == (5, np, stage, 1, False)
    assert ours.output is ours.labels is ours.dlogits is theirs.dlogits is None
    assert theirs.labels.shape == (5,) and theirs.labels.dtype == np.int64
    assert Model([Linear(3, relu=True)], (2,)).context(5).dlogits.shape == (5, 3)


def test_anothers_context_is_refused():
    one, two = (Stage([Linear(3)], (2,)) for _ in range(2))
    one.bind(np.zeros(one.layout.size, np.float32))
    with pytest.raises(UsageError, match="another model or device"):
        one.forward(two.context(5), np.zeros((5, 2), np.float32))


class LastUnits(Linear):
    """The columns of a linear layer from `FROM` on, as a layer."""

    FROM = 2

    def weights(self, shape):
        inputs, units = shape[-1], self.units + self.FROM
        weight, bias = Linear(units, self.relu).weights(shape)
        return (
            replace(weight, shape=(inputs, self.units), part=((inputs, units), (0, self.FROM))),
            replace(bias, shape=(self.units,), part=((units,), (self.FROM,))),
        )


def test_a_part_of_a_parameter_begins_as_the_whole_does():
    whole, part = Stage([Linear(7, relu=True), Linear(4)], (5,)), Stage([Linear(7, relu=True), LastUnits(2)], (5,))
    theirs, ours = (stage.layout.views(stage.init(3)) for stage in (whole, part))
    np.testing.assert_array_equal(ours["linear1.weight"], theirs["linear1.weight"])
    np.testing.assert_array_equal(ours["linear2.weight"], theirs["linear2.weight"][:, 2:])
    assert {p.name: (p.global_shape, p.start) for p in part.layout.parameters if p.shape != p.global_shape} == {
        "linear2.weight": ((7, 4), (0, 2)),
        "linear2.bias": ((4,), (2,)),
    }
    assert part.layout.torch == whole.layout.torch
