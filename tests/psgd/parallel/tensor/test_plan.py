"""Plans: which cut is chosen, by hand; models cut over ranks against the whole; memory, bits, refusals."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from harness.device import cupy

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten, Transpose
from psgd.nn.residual import Residual
from psgd.parallel.tensor.cut_linear import ColumnLinear, RowLinear
from psgd.parallel.tensor.layouts import FEATURES, REPLICATED
from psgd.parallel.tensor.plan import plan

N, BATCH = 9, 11
MODELS = {
    "mlp": ([Flatten(), Linear(13, relu=True), Linear(7)], (5, 3)),
    "softmax": ([Linear(7)], (13,)),
    "wide": ([Linear(23, relu=True), Linear(29), ReLU(), Linear(7)], (13,)),
    "odd": ([Linear(5), ReLU(), Linear(17, relu=True), Linear(3), Linear(11, relu=True)], (1,)),
    "convolutions": ([ChannelsLast(), Conv2D(3, 3), ReLU(), Flatten(), Linear(13), ReLU(), Linear(7)], (2, 5, 6)),
    "tokens": (
        [
            Linear(9),
            Residual((Transpose(), Linear(5), Transpose())),
            Residual((Linear(13, relu=True), Linear(9))),
            MeanPool(),
            Linear(6),
        ],
        (5, 4),
    ),
}
EVERY = pytest.mark.parametrize("name", MODELS)


def chosen(layers, shape, ranks=2, cuts=()):
    """The names of the ways of the linear layers, as (kind, before, after)."""
    cut = plan(layers, shape, SimpleNamespace(rank=0, size=ranks), cuts)
    letter = {REPLICATED: "r", FEATURES: "f"}
    return [
        f"{'column' if isinstance(layer, ColumnLinear) else 'row'} {letter[layer.before]}{letter[layer.after]}"
        for layer in cut
        if isinstance(layer, ColumnLinear | RowLinear)
    ]


def test_columns_then_rows():
    layers = [Flatten(), Linear(4096, relu=True), Linear(1024)]
    assert chosen(layers, (32, 32)) == ["column rf", "row fr"]


def test_what_lies_between_wide_layers_stays_cut():
    layers = [Linear(4096), ReLU(), Linear(4096, relu=True), Linear(10)]
    assert chosen(layers, (784,)) == ["column rf", "column ff", "row fr"]


def test_the_output_is_replicated_at_each_cut():
    layers = [Linear(4096, relu=True), Linear(4096, relu=True), Linear(10)]
    assert chosen(layers, (784,), cuts=(1, 2)) == ["column rr", "column rr", "row rr"]


def test_a_layer_too_small_for_the_ranks_is_cut_along_the_other_axis_or_not_at_all():
    assert chosen([Linear(10)], (784,), ranks=16) == ["row rr"]
    assert chosen([Linear(784)], (10,), ranks=16) == ["column rr"]
    assert chosen([Linear(3)], (10,), ranks=16) == []


def test_one_rank_has_the_layers_that_were_given():
    layers, shape = MODELS["tokens"]
    assert plan(layers, shape, SimpleNamespace(rank=0, size=1)) == layers


@pytest.mark.parametrize("cut", [0, 3, -1])
def test_a_cut_where_there_is_no_layer(cut):
    layers, shape = MODELS["mlp"]
    with pytest.raises(UsageError, match=f"plan: cuts: expected layers from 1 to 2, got {cut}"):
        plan(layers, shape, SimpleNamespace(rank=0, size=2), (1, cut))


def gradient(model, x, y, params, xp=np):
    """Loss and gradient of a model of which `params` are all, or this rank's."""
    params, grads = xp.asarray(params), xp.full(len(params), np.nan, params.dtype)
    model.bind(params, grads)
    loss = model.gradient(model.context(BATCH), xp.asarray(x), xp.asarray(y))
    return float(loss), grads if xp is np else grads.get()


def samples(shape, classes, dtype=np.float64):
    rng = np.random.default_rng(8)
    return rng.standard_normal((N, *shape)).astype(dtype), rng.integers(0, classes, N)


def check(comm, name, xp, rtol, dtype=np.float64):
    layers, shape = MODELS[name]
    with Communicator(comm) as tensor:
        whole, part = Model(layers, shape, dtype), Model(plan(layers, shape, tensor), shape, dtype)
        x, y = samples(shape, whole.classes, dtype)
        first, mine = whole.init(3), part.init(3)
        theirs, ours = whole.layout.views(first), part.layout.views(mine)
        assert list(ours) == list(theirs) and part.layout.torch == whole.layout.torch
        for p in part.layout.parameters:
            assert p.global_shape == theirs[p.name].shape
            np.testing.assert_array_equal(ours[p.name], theirs[p.name][p.slices])
        expected, whole_grads = gradient(whole, x, y, first)
        loss, grads = gradient(part, x, y, mine, xp)
        assert loss == pytest.approx(expected, rel=rtol)
        theirs, ours = whole.layout.views(whole_grads), part.layout.views(grads)
        for p in part.layout.parameters:
            np.testing.assert_allclose(ours[p.name], theirs[p.name][p.slices], rtol=rtol, atol=rtol)
            if p.shape == p.global_shape:
                assert len(set(comm.allgather(ours[p.name].tobytes()))) == 1, p.name
        assert len(set(comm.allgather(loss))) == 1


@EVERY
@pytest.mark.ranks(2, 3, 5)
def test_the_gradient_is_the_whole_models(comm, name):
    check(comm, name, np, 1e-10)


@EVERY
@pytest.mark.ranks(3)
def test_in_float32_too(comm, name):
    check(comm, name, np, 1e-5, np.float32)


@pytest.mark.gpu
@EVERY
@pytest.mark.ranks(2)
def test_the_gradient_on_a_gpu(comm, name):
    check(comm, name, cupy(), 1e-10)


@EVERY
@pytest.mark.ranks(2, 3)
def test_stages_of_a_cut_model_pass_whole_samples_on(comm, name):
    layers, shape = MODELS[name]
    cuts = range(1, len(layers))
    with Communicator(comm) as tensor:
        whole, part = Model(layers, shape), Model(plan(layers, shape, tensor, cuts), shape)
        for cut in cuts:
            assert part.cut(0, cut).output_shape == whole.cut(0, cut).output_shape


@pytest.mark.ranks(2)
def test_a_step_allocates_nothing(comm):
    layers, shape = [Linear(512, relu=True), Linear(300)], (400,)
    with Communicator(comm) as tensor:
        model = Model(plan(layers, shape, tensor), shape)
        x, y = samples(shape, 300, np.float32)
        params = model.init(1)
        model.bind(params, np.zeros_like(params))
        ctx = model.context(BATCH)
        for _ in range(2):
            model.gradient(ctx, x, y)
        tracemalloc.start()
        model.gradient(ctx, x, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < min(N * 256, 300) * 4 * 4, peak  # less than half of the smallest array would be 4608


@pytest.mark.ranks(2, 3)
def test_a_rank_has_its_share_of_the_parameters(comm):
    layers, shape = [Linear(601, relu=True), Linear(307)], (211,)
    with Communicator(comm) as tensor:
        part = Model(plan(layers, shape, tensor), shape)
        whole = sum(p.size for p in Model(layers, shape).layout.parameters)
        assert sum(p.size for p in part.layout.parameters) == pytest.approx(whole / comm.size, rel=0.01)
