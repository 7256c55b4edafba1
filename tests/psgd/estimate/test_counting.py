"""Counted buffers against those that are made."""

import numpy as np
import pytest

from psgd.estimate.counting import CountingArrays
from psgd.nn.models import build


class Noting:
    """NumPy, whose arrays are remembered."""

    ndarray = np.ndarray

    def __init__(self):
        self.made = []

    def empty(self, shape, dtype=np.float64):
        self.made.append(np.empty(shape, dtype))
        return self.made[-1]

    zeros = ones = empty

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn", "resmlp"])
@pytest.mark.parametrize("batch", [1, 7])
def test_what_is_counted_is_what_is_made(model, batch):
    made = build(model, (1, 28, 28), 10, **({} if model == "softmax" else {"hidden": 24}))
    counting, noting = CountingArrays(), Noting()
    made.context(batch, xp=counting)
    made.context(batch, xp=noting)
    assert counting.nbytes == sum(array.nbytes for array in noting.made) > 0


def test_an_array_of_any_size_takes_no_memory():
    counting = CountingArrays()
    array = counting.empty((1 << 30, 1 << 10), np.float32)
    assert array.shape == (1 << 30, 1 << 10) and array.dtype == np.float32
    assert counting.nbytes == 4 << 40
    assert array.reshape(-1).shape == (1 << 40,)
