"""What ranks compare of their data: every difference shows, and the form of an array in memory does not."""

import numpy as np
import pytest

from psgd.data import description
from psgd.data.dataset import assemble, split
from psgd.data.description import checksum, describe


def dataset(x, y):
    return assemble("made", split(x, y, "x", "y"), split(x[:5], y[:5], "x", "y"))


def test_sizes_shapes_classes_and_dtypes():
    x, y = np.zeros((12, 3, 2), np.uint8), np.arange(12, dtype=np.int16) % 4
    assert describe(dataset(x, y)) == {
        **{"training samples": 12, "test samples": 5, "sample shape": [1, 3, 2], "classes": 4},
        **{"dtype of samples": "uint8", "dtype of labels": "int16"},
    }
    assert describe(dataset(x, y), contents=True)["checksum"] == checksum(x, y, x[:5], y[:5])


@pytest.mark.parametrize("chunk", [1, 64, 1 << 22])
def test_each_byte_counts_whatever_the_pieces(monkeypatch, chunk):
    x, y = np.arange(60.0).reshape(20, 3), np.arange(20)
    whole = checksum(x, y)
    monkeypatch.setattr(description, "_CHUNK_BYTES", chunk)
    assert checksum(x, y) == checksum(np.asfortranarray(x), y) == whole
    for k in range(20):
        for array in (x, y):
            changed = array.copy()
            changed[k] += 1
            assert checksum(*(changed if each is array else each for each in (x, y))) != whole
