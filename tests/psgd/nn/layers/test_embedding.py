"""Embeddings by token, against NumPy, on the host and on a GPU; wrong tokens."""

import numpy as np
import pytest
from harness.device import cupy
from harness.layers import BATCH, N

from psgd.kernels.errors import DataError
from psgd.nn.layer import Room
from psgd.nn.layers.embedding import Embedding


def run(xp, tokens, vocabulary, width, dtype=np.float64, wants_dx=True):
    layer = Embedding(vocabulary, width)
    rng = np.random.default_rng(0)
    table = xp.asarray(rng.standard_normal((vocabulary, width)), dtype)
    dy = xp.asarray(rng.standard_normal((*tokens.shape, width)), dtype)
    state = layer.allocate(Room(xp, BATCH, np.dtype(dtype), tokens.shape[1:], wants_dx))
    y = layer.forward(state, xp.asarray(tokens, dtype), (table,))
    grads = (xp.full_like(table, np.nan),)
    dx = layer.backward(state, dy, (table,), grads)
    return tuple(a if a is None or xp is np else a.get() for a in (table, dy, y, dx, grads[0]))


@pytest.mark.parametrize(
    ("vocabulary", "width", "shape"), [(256, 128, (37,)), (5, 3, (4, 2)), (1, 1, (1,)), (3, 300, (400,))]
)
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_rows_by_token_and_the_sum_of_their_gradients(vocabulary, width, shape, on_gpu):
    tokens = np.random.default_rng(1).integers(0, vocabulary, (N, *shape))
    table, dy, y, dx, dtable = run(cupy() if on_gpu else np, tokens, vocabulary, width)
    np.testing.assert_array_equal(y, table[tokens])
    expected = np.zeros_like(table)
    np.add.at(expected, tokens, dy)
    np.testing.assert_array_equal(dtable, expected)  # the same order
    np.testing.assert_array_equal(dx, np.zeros(tokens.shape))


def test_no_gradient_for_tokens_where_it_is_not_wanted():
    assert run(np, np.zeros((N, 4)), 3, 2, wants_dx=False)[3] is None


@pytest.mark.parametrize("token", [-1, 7, np.nan, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_token_that_the_table_lacks_is_named(token, dtype):
    tokens = np.array([[0, 6], [3, token]])
    with pytest.raises(DataError, match=r"token .* at place 3 of the batch is not in 0\.\.6"):
        run(np, tokens, 7, 2, dtype)


def test_numbers_up_to_2_to_the_24_are_exact():
    tokens = np.arange(2**24 - 4, 2**24).reshape(1, 4)
    y = run(np, tokens, 2**24, 1, np.float32)
    np.testing.assert_array_equal(y[2], y[0][tokens])
