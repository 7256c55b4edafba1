"""Text as samples: which bytes are where, what is held out, what is too short; tokens are not normalized."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from psgd.data import load, text
from psgd.data.batches import Batches
from psgd.data.normalization import Statistics, validate
from psgd.kernels.errors import DataError, UsageError


def test_labels_are_the_bytes_that_follow(tmp_path):
    contents = bytes(range(256)) * 2
    (tmp_path / "all.txt").write_bytes(contents)
    dataset = load(tmp_path / "all.txt", context=7)
    assert (dataset.sample_shape, dataset.classes, dataset.tokens) == ((7,), 256, True)
    assert (dataset.train.samples, dataset.test.samples, dataset.test.first) == (60, 13, 60)
    x = np.concatenate([dataset.train.x, dataset.test.x])
    y = np.concatenate([dataset.train.y, dataset.test.y])
    assert x.tobytes() == contents[: 73 * 7]
    assert y.tobytes() == contents[1 : 73 * 7 + 1]
    assert not x[:, 1:].size - (x[:, 1:] == y[:, :-1]).sum()
    assert not dataset.train.x.flags.writeable
    assert isinstance(dataset.train.x.base, np.memmap)


@pytest.mark.parametrize(("size", "samples"), [(9, 2), (11, 2), (12, 2), (13, 3)])
def test_what_is_left_over_is_not_used(tmp_path, size, samples):
    (tmp_path / "a.txt").write_bytes(b"x" * size)
    dataset = load(tmp_path / "a.txt", context=4)
    assert dataset.train.samples + dataset.test.samples == samples


@pytest.mark.parametrize("size", [0, 1, 8])
def test_a_text_that_is_too_short_is_refused_in_one_line(tmp_path, size):
    (tmp_path / "a.txt").write_bytes(b"x" * size)
    with pytest.raises(
        DataError, match=rf"a.txt: {size} bytes; expected at least 9, two samples of 4 tokens"
    ) as caught:
        load(tmp_path / "a.txt", context=4)
    assert "\n" not in str(caught.value)


def test_a_context_below_1_is_refused():
    with pytest.raises(UsageError, match="context of at least 1 token, got 0"):
        load("genesis", context=0)


def test_the_text_in_the_package():
    dataset = load("genesis")
    assert (dataset.sample_shape, dataset.train.samples, dataset.test.samples) == ((text.CONTEXT,), 1281, 257)
    assert dataset.train.x[0].tobytes().startswith(b"In the beginning God created the heaven and the earth.\n")
    path = Path(dataset.train.x_where)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in path.with_name("genesis-source.txt").read_text()


def test_tokens_reach_a_batch_as_they_are():
    dataset = load("genesis", context=16)
    statistics = validate(dataset)
    assert statistics == Statistics(0.0, 1.0)
    rows = np.array([5, 0, 11])
    for dtype in (np.float32, np.float64):
        batches = Batches(dataset.train, statistics, 4, dtype)
        for x, y in (batches.fetch(rows), batches.ordered(2, 5)):
            assert (x.dtype, y.dtype, x.shape, y.shape) == (dtype, np.int64, (3, 16), (3, 16))
        x, y = batches.fetch(rows)
        np.testing.assert_array_equal(x, dataset.train.x[rows])
        np.testing.assert_array_equal(y, dataset.train.y[rows])
        x, y = batches.ordered(2, 5)
        np.testing.assert_array_equal(x, dataset.train.x[2:5])
        np.testing.assert_array_equal(y, dataset.train.y[2:5])
