"""Embedding, scores and loss cut by vocabulary, against the whole ones: any vocabulary by any number of ranks."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.collectives import Communicator
from psgd.kernels.errors import DataError
from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.nn.layers.embedding import Embedding, Unembedding
from psgd.nn.stage import Stage
from psgd.parallel.tensor.layouts import FEATURES, REPLICATED
from psgd.parallel.tensor.vocabulary import CutEmbedding, CutUnembedding, VocabularyLoss

TOKENS, WIDTH, BATCH, N = 5, 6, 4, 3
SIZES = pytest.mark.parametrize("vocabulary", [3, 7, 13, 50257])


def run(stage, params, x, dy, xp=np, batch=BATCH):
    """Output and gradients by name."""
    params, grads = xp.asarray(params), xp.full(len(params), np.nan, params.dtype)
    stage.bind(params, grads)
    ctx = stage.context(batch, wants_dx=True)
    y = stage.forward(ctx, xp.asarray(x)).copy()
    dx = stage.backward(ctx, xp.asarray(dy.copy()))
    if xp is not np:
        y, dx, grads = y.get(), dx.get(), grads.get()
    return y, dx, stage.layout.views(grads)


def of_rank(comm, array):
    mine = FEATURES.shares(array.shape[-1], comm.size)[comm.rank]
    return array[..., mine.start : mine.stop].copy()


def check_embedding(comm, vocabulary, xp):
    rng = np.random.default_rng(vocabulary)
    x = rng.integers(0, vocabulary, (N, TOKENS)).astype(np.float32)
    dy = rng.standard_normal((N, TOKENS, WIDTH)).astype(np.float32)
    with Communicator(comm) as tensor:
        layers = Embedding(vocabulary, WIDTH), CutEmbedding(vocabulary, WIDTH, comm=tensor)
        whole, part = (Stage([layer], (TOKENS,)) for layer in layers)
        (p,) = part.layout.parameters
        y, _, expected = run(whole, whole.init(1), x, dy)
        ours, _, grads = run(part, part.init(1), x, dy, xp)
        np.testing.assert_array_equal(ours, y)
        np.testing.assert_array_equal(grads[p.name], expected[p.name][p.slices])


def check_scores(comm, vocabulary, after, xp):
    rng = np.random.default_rng(vocabulary)
    x, dy = rng.standard_normal((N, TOKENS, WIDTH)), rng.standard_normal((N, TOKENS, vocabulary))
    with Communicator(comm) as tensor:
        layers = Unembedding(vocabulary, None), CutUnembedding(vocabulary, None, comm=tensor, after=after)
        whole, part = (Stage([layer], (TOKENS, WIDTH), np.float64) for layer in layers)
        (p,) = part.layout.parameters
        y, dx, expected = run(whole, whole.init(1), x, dy)
        mine = of_rank(comm, dy) if after == FEATURES else dy
        ours, dours, grads = run(part, part.init(1), x, mine, xp)
        np.testing.assert_allclose(ours, of_rank(comm, y) if after == FEATURES else y, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(dours, dx, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(grads[p.name], expected[p.name][p.slices], rtol=1e-10, atol=1e-12)
        assert len(set(comm.allgather(dours.tobytes()))) == 1


def check_loss(comm, classes, xp):
    rng = np.random.default_rng(classes)
    with Communicator(comm) as tensor:
        loss_of = VocabularyLoss(tensor, classes)
        for n in (4, 9, 1):
            logits, labels = 3 * rng.standard_normal((n, classes)), rng.integers(0, classes, n)
            mine = xp.asarray(of_rank(comm, logits))
            np.testing.assert_array_equal(loss_of.predict(mine).tolist(), logits.argmax(axis=1))
            loss, correct = loss_of(mine, xp.asarray(labels), 1 / n)
            expected = softmax_cross_entropy(logits, labels, 1 / n)
            assert loss == pytest.approx(expected[0], rel=1e-12) and correct == expected[1]
            np.testing.assert_allclose(mine if xp is np else mine.get(), of_rank(comm, logits), rtol=1e-10, atol=1e-12)
            assert len(set(comm.allgather((float(loss), int(correct))))) == 1
        with pytest.raises(DataError, match=rf"label {classes} in row 1 of the batch is not in 0\.\.{classes - 1}"):
            loss_of(xp.asarray(of_rank(comm, np.zeros((2, classes)))), xp.asarray([0, classes]), 1.0)


@SIZES
@pytest.mark.ranks(1, 2, 3)
def test_embedding_has_the_bits_of_the_whole(comm, vocabulary):
    check_embedding(comm, vocabulary, np)


@SIZES
@pytest.mark.ranks(2, 3)
def test_scores(comm, vocabulary):
    check_scores(comm, vocabulary, REPLICATED, np)
    check_scores(comm, vocabulary, FEATURES, np)


@SIZES
@pytest.mark.ranks(1, 2, 3)
def test_loss(comm, vocabulary):
    check_loss(comm, vocabulary, np)


@pytest.mark.ranks(2)
def test_a_token_that_there_is_not_is_an_error_on_all_ranks(comm):
    with Communicator(comm) as tensor:
        stage = Stage([CutEmbedding(7, WIDTH, comm=tensor)], (TOKENS,))
        stage.bind(stage.init(1))
        with pytest.raises(DataError, match=r"token 7.0 at place 2 of the batch is not in 0\.\.6"):
            stage.forward(stage.context(1), np.array([[0, 6, 7, 1, 2]], np.float32))


@pytest.mark.gpu
@SIZES
@pytest.mark.ranks(2)
def test_on_a_gpu(comm, vocabulary):
    check_embedding(comm, vocabulary, cupy())
    check_scores(comm, vocabulary, REPLICATED, cupy())
    check_scores(comm, vocabulary, FEATURES, cupy())
    check_loss(comm, vocabulary, cupy())
