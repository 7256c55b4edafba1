"""Other shapes of the same samples: views where that is possible, and back again."""

import numpy as np
import pytest
from harness.layers import Run

from psgd.nn.reshape import ChannelsLast, Flatten, RowTokens, Transpose


@pytest.mark.parametrize(("layer", "shape"), [(Flatten(), (5, 3, 2)), (RowTokens(), (4, 5, 3))], ids=str)
def test_views(layer, shape):
    run = Run(layer, shape)
    y = layer.forward(run.state, run.x, ())
    assert np.shares_memory(y, run.x)
    np.testing.assert_array_equal(y.reshape(-1), run.x.reshape(-1))
    np.testing.assert_array_equal(layer.backward(run.state, y, (), ()), run.x)


def test_a_token_is_a_row_of_pixels():
    run = Run(RowTokens(), (4, 5, 3))
    np.testing.assert_array_equal(run.forward()[1, 2], run.x[1, 2].reshape(-1))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_and_back(channels):
    run = Run(ChannelsLast(), (channels, 5, 4))
    y = run.layer.forward(run.state, run.x, ())
    np.testing.assert_array_equal(y, np.moveaxis(run.x, 1, 3))
    assert y.flags.c_contiguous
    np.testing.assert_array_equal(run.layer.backward(run.state, y.copy(), (), ()), run.x)


def test_tokens_and_features_swapped_and_back():
    run = Run(Transpose(), (5, 3))
    y = run.layer.forward(run.state, run.x, ())
    np.testing.assert_array_equal(y, run.x.transpose(0, 2, 1))
    assert y.flags.c_contiguous and not np.shares_memory(y, run.x)
    np.testing.assert_array_equal(run.layer.backward(run.state, y.copy(), (), ()), run.x)
