"""Cut linear layers against one process that cuts and sums alike, bit for bit, and against the whole layer."""

import itertools

import numpy as np
import pytest
from harness.device import cupy

from psgd.collectives import Communicator
from psgd.kernels.layers.activation import add_bias, bias_relu, bias_relu_backward
from psgd.kernels.layers.matmul import sum_rows
from psgd.nn.layer import Room
from psgd.nn.linear import Linear
from psgd.parallel.tensor.cut_linear import ColumnLinear, RowLinear
from psgd.parallel.tensor.layouts import FEATURES, REPLICATED

BATCH, N = 6, 5
WAYS = list(itertools.product((ColumnLinear, RowLinear), (REPLICATED, FEATURES), (REPLICATED, FEATURES)))
SIZES = [((7,), 5), ((13,), 7), ((3,), 13), ((2, 7), 5), ((260,), 300)]


def drawn(shape, units, dtype):
    rng = np.random.default_rng([units, *shape])
    arrays = {"x": (N, *shape), "dy": (N, *shape[:-1], units), "w": (shape[-1], units), "b": (units,)}
    return {name: rng.standard_normal(extents).astype(dtype) for name, extents in arrays.items()}


def part_of(spec):
    """Where a parameter lies in its whole."""
    start = spec.part[1] if spec.part else (0,) * len(spec.shape)
    return tuple(slice(first, first + extent) for first, extent in zip(start, spec.shape, strict=True))


def on_rank(layout, array, comm):
    if layout == REPLICATED:
        return array.copy()
    mine = FEATURES.shares(array.shape[-1], comm.size)[comm.rank]
    return array[..., mine.start : mine.stop].copy()


def activated(y, bias, relu):
    (bias_relu if relu else add_bias)(y, bias)
    return y


def deactivated(y, dy, relu):
    """The gradient before ReLU, and the bias's."""
    dbias, dy = np.empty(dy.shape[-1], dy.dtype), dy.copy()
    if relu:
        bias_relu_backward(y, dy, dbias)
    else:
        sum_rows(dy, np.ones(len(dy), dy.dtype), dbias)
    return dy, dbias


def sequential(kind, after, relu, ranks, x, dy, w, b):
    """The whole output, input gradient, and each rank's gradients, with the ranks' products one after the other."""
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    units = [slice(part.start, part.stop) for part in FEATURES.shares(len(b), ranks)]
    inputs = [slice(part.start, part.stop) for part in FEATURES.shares(len(w), ranks)]
    if kind is ColumnLinear:
        ys = [activated(np.matmul(x, w[:, cut].copy()), b[cut].copy(), relu) for cut in units]
        pairs = [deactivated(y, dy[:, cut].copy(), relu) for y, cut in zip(ys, units, strict=True)]
        dx = np.matmul(pairs[0][0], w[:, units[0]].copy().T)
        for (each, _), cut in zip(pairs[1:], units[1:], strict=True):
            dx += np.matmul(each, w[:, cut].copy().T)
        return np.concatenate(ys, axis=1), dx, [(np.matmul(x.T, each), db) for each, db in pairs]
    y = np.matmul(x[:, inputs[0]].copy(), w[inputs[0]])
    for cut in inputs[1:]:
        y += np.matmul(x[:, cut].copy(), w[cut])
    y = activated(y, b, relu)
    pieces = [slice(None)] * ranks if after == REPLICATED else units
    pairs = [deactivated(y[:, cut].copy(), dy[:, cut].copy(), relu) for cut in pieces]
    whole = pairs[0][0] if after == REPLICATED else np.concatenate([each for each, _ in pairs], axis=1)
    dx = np.concatenate([np.matmul(whole, w[cut].T) for cut in inputs], axis=1)
    return y, dx, [(np.matmul(x[:, cut].copy().T, whole), db) for cut, (_, db) in zip(inputs, pairs, strict=True)]


def run(comm, kind, before, after, relu, shape, units, values, xp=np):
    """This rank's output, input gradient and gradients, on the host."""
    layer = kind(units, relu=relu, comm=comm, inputs=shape[-1], before=before, after=after)
    x, dy = on_rank(before, values["x"], comm), on_rank(after, values["dy"], comm)
    room = Room(xp, BATCH, x.dtype, x.shape[1:], True)
    state = layer.allocate(room)
    whole = {"weight": values["w"], "bias": values["b"]}
    params, grads = [], []
    for spec in layer.weights(x.shape[1:]):
        assert (spec.part or (spec.shape,))[0] == whole[spec.name].shape
        params.append(xp.asarray(whole[spec.name][part_of(spec)].copy()))
        grads.append(xp.full_like(params[-1], np.nan))
    y = layer.forward(state, xp.asarray(x), tuple(params)).copy()
    assert y.shape == (N, *layer.output_shape(x.shape[1:]))
    dx = layer.backward(state, xp.asarray(dy), tuple(params), tuple(grads))
    arrays = (y, dx, *grads)
    return arrays if xp is np else tuple(each.get() for each in arrays)


def cases():
    for (kind, before, after), relu, (shape, units) in itertools.product(WAYS, (False, True), SIZES):
        yield kind, before, after, relu, shape, units


@pytest.mark.ranks(1, 2, 3)
def test_bits_of_one_process_that_cuts_alike(comm):
    with Communicator(comm) as tensor:
        for case in cases():
            kind, before, after, relu, shape, units = case
            values = drawn(shape, units, np.float32)
            y, dx, grads = sequential(kind, after, relu, comm.size, *values.values())
            y, dx = y.reshape(values["dy"].shape), dx.reshape(values["x"].shape)
            expected = (on_rank(after, y, comm), on_rank(before, dx, comm), *grads[comm.rank])
            for ours, theirs in zip(run(tensor, *case, values), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs, err_msg=str(case))


def check_against_whole(comm, xp):
    with Communicator(comm) as tensor:
        for case in cases():
            kind, before, after, relu, shape, units = case
            values = drawn(shape, units, np.float64)
            layer = Linear(units, relu=relu)
            state = layer.allocate(Room(np, BATCH, np.dtype(np.float64), shape, True))
            params, grads = (values["w"], values["b"]), (np.empty_like(values["w"]), np.empty_like(values["b"]))
            y = layer.forward(state, values["x"], params).copy()
            dx = layer.backward(state, values["dy"].copy(), params, grads)
            mine = run(tensor, *case, values, xp)
            specs = kind(units, comm=tensor, inputs=shape[-1], before=before, after=after).weights(shape)
            parts = [whole[part_of(spec)] for whole, spec in zip(grads, specs, strict=True)]
            expected = (on_rank(after, y, comm), on_rank(before, dx, comm), *parts)
            for ours, theirs in zip(mine, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11, err_msg=str(case))


@pytest.mark.ranks(2, 3)
def test_the_whole_layer(comm):
    check_against_whole(comm, np)


@pytest.mark.gpu
@pytest.mark.ranks(2)
def test_the_whole_layer_on_a_gpu(comm):
    check_against_whole(comm, cupy())


@pytest.mark.ranks(2)
def test_the_gradient_of_a_replicated_bias_has_the_same_bits_on_all_ranks(comm):
    with Communicator(comm) as tensor:
        values = drawn((13,), 7, np.float32)
        *_, dbias = run(tensor, RowLinear, FEATURES, REPLICATED, True, (13,), 7, values)
        assert dbias.shape == (7,) and np.abs(dbias).max() > 0
        assert len(set(comm.allgather(dbias.tobytes()))) == 1


@pytest.mark.ranks(2)
def test_no_input_gradient_where_none_is_wanted(comm):
    with Communicator(comm) as tensor:
        layer = ColumnLinear(4, comm=tensor, inputs=3, after=FEATURES)
        state = layer.allocate(Room(np, BATCH, np.dtype(np.float32), (3,), False))
        params = tuple(np.ones(spec.shape, np.float32) for spec in layer.weights((3,)))
        y = layer.forward(state, np.ones((N, 3), np.float32), params)
        assert y.shape == (N, 2) and not layer.reads_output
        assert layer.backward(state, y.copy(), params, tuple(map(np.empty_like, params))) is None
