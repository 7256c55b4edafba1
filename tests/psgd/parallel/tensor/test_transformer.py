"""A transformer cut by tensor: against the uncut one, and bit for bit against ranks that one process plays."""

import numpy as np
import pytest
from harness.device import cupy
from harness.played_ranks import play

from psgd.collectives import Communicator
from psgd.estimate.activations import count
from psgd.nn.layers.attention import Attention
from psgd.nn.layers.embedding import Embedding, Positions, Unembedding
from psgd.nn.layers.gelu import GELU
from psgd.nn.layers.layernorm import LayerNorm
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.residual import Residual
from psgd.nn.stage import Stage
from psgd.parallel.tensor.plan import plan

VOCABULARY, TOKENS, HEADS, WIDTH, BATCH, N, STEPS = 29, 6, 5, 20, 4, 3, 4
LAYERS = [
    Embedding(VOCABULARY, WIDTH),
    Positions(),
    *[
        Residual((LayerNorm(), Attention(HEADS))),
        Residual((LayerNorm(), Linear(4 * WIDTH), GELU(), Linear(WIDTH))),
    ]
    * 2,
    LayerNorm(),
    Unembedding(VOCABULARY),
]


def trained(comm, dtype, xp=np, layers=None):
    """Some steps of gradient descent on half the squared output; returns the stage, its output and its parameters."""
    stage = Stage(plan(LAYERS, (TOKENS,), comm) if layers is None else layers, (TOKENS,), dtype)
    rng = np.random.default_rng(5)
    params = xp.asarray(stage.init(2))
    grads = xp.zeros_like(params)
    stage.bind(params, grads)
    ctx = stage.context(BATCH)
    for n in [N, BATCH, 1, N][:STEPS]:
        y = stage.forward(ctx, xp.asarray(rng.integers(0, VOCABULARY, (n, TOKENS)).astype(dtype)))
        kept = y.copy()
        stage.backward(ctx, kept.copy())
        params -= params.dtype.type(0.02) * grads
    return stage, *((kept, params) if xp is np else (kept.get(), params.get()))


def check_against_whole(comm, dtype, rtol, xp=np):
    whole, expected, values = trained(None, dtype, layers=LAYERS)
    with Communicator(comm) as tensor:
        part, y, mine = trained(tensor, dtype, xp)
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(y, expected, rtol=rtol, atol=rtol)
        assert len(set(comm.allgather(y.tobytes()))) == 1
        theirs, ours = whole.layout.views(values), part.layout.views(mine)
        replicated = 0
        for p in part.layout.parameters:
            np.testing.assert_allclose(ours[p.name], theirs[p.name][p.slices], rtol=rtol, atol=rtol)
            if p.shape == p.global_shape:
                replicated += 1
                assert len(set(comm.allgather(ours[p.name].tobytes()))) == 1, p.name
        assert replicated > 0
        assert dict(part.layout.tied) == {"unembedding1.weight": "embedding1.weight"}
        assert sum(comm.allgather(ours["embedding1.weight"].size)) == VOCABULARY * WIDTH


@pytest.mark.ranks(2, 3, 5)
def test_it_is_the_uncut_one(comm):
    check_against_whole(comm, np.float64, 1e-10)


@pytest.mark.ranks(2, 3)
def test_in_float32_to_a_hundred_thousandth(comm):
    check_against_whole(comm, np.float32, 1e-5)


def trained_with_loss(layers, dtype, segments=(), steps=5):
    """The mean losses of some steps, what `evaluate` says, and the last gradient with its layout."""
    model, dtype = Model(layers, (TOKENS,), dtype).recomputed(segments), np.dtype(dtype)
    assert model.classes == VOCABULARY and model.tokens == TOKENS
    rng = np.random.default_rng(6)
    params = model.init(2)
    grads = np.zeros_like(params)
    model.bind(params, grads)
    ctx, losses = model.context(BATCH), []
    for step in range(steps):
        x = rng.integers(0, VOCABULARY, (1 + step % BATCH, TOKENS))
        losses.append(model.gradient(ctx, x.astype(dtype), (x * 7 + 1) % VOCABULARY))
        params -= params.dtype.type(0.5) * grads
    x = rng.integers(0, VOCABULARY, (3, TOKENS))
    return losses, model.evaluate(ctx, x.astype(dtype), (x * 7 + 1) % VOCABULARY), model.layout, grads


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("cut", [False, True])
def test_a_model_of_text_with_its_loss_whole_or_cut(comm, cut, dtype, rtol):
    losses, (right, loss), layout, grads = trained_with_loss(LAYERS, dtype)
    with Communicator(comm) as tensor:
        layers = plan(LAYERS, (TOKENS,), tensor, loss=cut)
        assert (layers[-1].loss is not None) == cut
        ours, (our_right, our_loss), part, own = trained_with_loss(layers, dtype)
    np.testing.assert_allclose(ours, losses, rtol=rtol)
    assert our_right == right and our_loss == pytest.approx(loss, rel=rtol)
    assert losses[-1] != losses[0] and len(set(comm.allgather(tuple(map(float, ours))))) == 1
    theirs, mine = layout.views(grads), part.views(own)
    for p in part.parameters:
        np.testing.assert_allclose(mine[p.name], theirs[p.name][p.slices], rtol=10 * rtol, atol=rtol)


@pytest.mark.ranks(2)
def test_bits_of_activations_that_are_computed_twice(comm):
    with Communicator(comm) as tensor:
        layers = plan(LAYERS, (TOKENS,), tensor, loss=True)
        kept, again = (trained_with_loss(layers, "float32", each) for each in ((), (range(0, 3), range(3, 8))))
    assert kept[:2] == again[:2]
    np.testing.assert_array_equal(kept[3], again[3])


@pytest.mark.ranks(2)
def test_one_rank_alone_counts_the_bytes_of_activations(comm):
    with Communicator(comm) as tensor:
        model = Model(plan(LAYERS, (TOKENS,), tensor, loss=True), (TOKENS,))
        if comm.rank == 0:
            assert count(model, 64) > 50 * count(model, 1) > 50 * BATCH * TOKENS * WIDTH
        comm.Barrier()


@pytest.mark.gpu
@pytest.mark.ranks(2)
def test_on_a_gpu(comm):
    check_against_whole(comm, np.float64, 1e-9, cupy())


@pytest.mark.ranks(2, 3, 5)
def test_bits_of_ranks_that_one_process_plays(comm):
    played = play(comm.size, lambda rank: trained(rank, np.float32)[1:])
    with Communicator(comm) as tensor:
        _, y, params = trained(tensor, np.float32)
    np.testing.assert_array_equal(y, played[comm.rank][0])
    np.testing.assert_array_equal(params, played[comm.rank][1])
