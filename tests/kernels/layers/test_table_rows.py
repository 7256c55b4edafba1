"""The rows of a table by number on a GPU and on the host: the same bits."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.layers import table_rows


@pytest.mark.parametrize("device", [on_gpu(table_rows.look_up)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_missing_are_nan_on_a_gpu(device, dtype):
    table = np.arange(6, dtype=dtype).reshape(3, 2)
    y = np.zeros((4, 2), dtype)
    device(np.array([2, 3, -1, 0], dtype), table, y)
    np.testing.assert_array_equal(y, [[4, 5], [np.nan] * 2, [np.nan] * 2, [0, 1]])


@pytest.mark.parametrize("backward", [table_rows.embed_backward, on_gpu(table_rows.embed_backward)])
@pytest.mark.parametrize(("n", "vocabulary", "width"), [(1, 1, 1), (1000, 7, 3), (513, 300, 257)])
def test_the_sum_is_made_in_the_order_of_tokens(backward, n, vocabulary, width):
    rng = np.random.default_rng(n)
    tokens = rng.integers(0, vocabulary, n)
    dy = rng.standard_normal((n, width)).astype(np.float32)
    expected = np.zeros((vocabulary, width), np.float32)
    for token, row in zip(tokens, dy, strict=True):
        expected[token] += row
    found = np.full_like(expected, np.nan)
    backward(tokens.astype(np.float32), dy, found)
    np.testing.assert_array_equal(found, expected)
