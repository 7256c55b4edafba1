"""A table in parts: together the rows of the whole, and its gradient; tokens that no part has a row for."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.errors import DataError
from psgd.kernels.layers.table_part import embed_part, look_up_part
from psgd.kernels.layers.table_rows import embed_backward

FORMS = [embed_part, on_gpu(look_up_part)]
PARTS = [range(3), range(3, 4), range(4, 7)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_together_are_the_whole(form, dtype):
    rng = np.random.default_rng(0)
    table, tokens = rng.standard_normal((7, 5)).astype(dtype), rng.integers(0, 7, 100).astype(dtype)
    total = np.zeros((100, 5), dtype)
    for part in PARTS:
        y = np.full((100, 5), np.nan, dtype)
        form(tokens - part.start, table[part.start : part.stop].copy(), y, part.start, 7)
        assert (y != 0).any(axis=1).sum() == np.isin(tokens, part).sum()
        total += y
    np.testing.assert_array_equal(total, table[tokens.astype(int)])


@pytest.mark.parametrize("backward", [embed_backward, on_gpu(embed_backward)])
def test_each_part_has_its_rows_of_the_gradient(backward):
    rng = np.random.default_rng(1)
    tokens, dy = rng.integers(0, 7, 300).astype(np.float32), rng.standard_normal((300, 5)).astype(np.float32)
    whole = np.empty((7, 5), np.float32)
    backward(tokens, dy, whole)
    for part in PARTS:
        mine = np.empty((len(part), 5), np.float32)
        backward(tokens - np.float32(part.start), dy, mine)
        np.testing.assert_array_equal(mine, whole[part.start : part.stop])


@pytest.mark.parametrize("token", [-1.0, 7.0])
@pytest.mark.parametrize("part", PARTS)
def test_a_token_that_the_whole_has_no_row_for(part, token):
    tokens, y = np.array([0.0, token]) - part.start, np.empty((2, 5))
    with pytest.raises(DataError, match=rf"token {token} at place 1 of the batch is not in 0\.\.6"):
        embed_part(tokens, np.ones((len(part), 5)), y, part.start, 7)


@pytest.mark.parametrize("form", [on_gpu(look_up_part)])
@pytest.mark.parametrize("token", [-1.0, 7.0, np.nan])
def test_its_row_is_nan_on_a_gpu(form, token):
    tokens, y = np.array([3.0, token]) - 3, np.empty((2, 5))
    form(tokens, np.ones((1, 5)), y, 3, 7)
    np.testing.assert_array_equal(y, [[1.0] * 5, [np.nan] * 5])
