"""Attention cut by heads: the whole layer's results, heads that do not divide, and the parts of its parameters."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.collectives import Communicator
from psgd.nn.layers.attention import Attention
from psgd.nn.stage import Stage
from psgd.parallel.tensor.cut_attention import CutAttention

BATCH, N, TOKENS = 5, 4, 6


def run(stage, params, x, dy, xp=np):
    """Output, input gradient, and gradients by name."""
    params, grads = xp.asarray(params), xp.full(len(params), np.nan, params.dtype)
    stage.bind(params, grads)
    ctx = stage.context(BATCH, wants_dx=True)
    y = stage.forward(ctx, xp.asarray(x)).copy()
    dx = stage.backward(ctx, xp.asarray(dy.copy()))
    if xp is not np:
        y, dx, grads = y.get(), dx.get(), grads.get()
    return y, dx, stage.layout.views(grads)


def check(comm, heads, xp, dtype=np.float64, rtol=1e-11):
    shape = TOKENS, 4 * heads
    rng = np.random.default_rng(heads)
    x, dy = (rng.standard_normal((N, *shape)).astype(dtype) for _ in range(2))
    with Communicator(comm) as tensor:
        whole, part = (Stage([layer], shape, dtype) for layer in (Attention(heads), CutAttention(heads, comm=tensor)))
        first, mine = whole.layout.views(whole.init(2)), part.layout.views(part.init(2))
        for p in part.layout.parameters:
            np.testing.assert_array_equal(mine[p.name], first[p.name][p.slices])
        assert part.layout.torch == whole.layout.torch
        theirs, ours = run(whole, whole.init(2), x, dy), run(part, part.init(2), x, dy, xp)
        for got, expected in zip(ours[:2], theirs[:2], strict=True):
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)
            assert len(set(comm.allgather(got.tobytes()))) == 1
        for p in part.layout.parameters:
            np.testing.assert_allclose(ours[2][p.name], theirs[2][p.name][p.slices], rtol=rtol, atol=rtol)
        return part


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("heads", [3, 4, 7])
def test_the_whole_layer(comm, heads):
    part = check(comm, heads, np)
    mine = {p.name: p.shape for p in part.layout.parameters}["attention1.qkv.weight"][1]
    assert sum(comm.allgather(mine)) == 12 * heads and mine % 12 == 0


@pytest.mark.ranks(3)
def test_in_float32_too(comm):
    check(comm, 4, np, np.float32, 1e-5)


@pytest.mark.gpu
@pytest.mark.ranks(2)
def test_on_a_gpu(comm):
    check(comm, 3, cupy())
