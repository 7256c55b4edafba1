"""Dropout by key: the published values of Philox 4x32-10, and what is dropped by them, on the host and on a GPU."""

import numpy as np
import pytest
from harness.device import on_gpu

from psgd.kernels.errors import UsageError
from psgd.kernels.layers import draws

DROP = pytest.mark.parametrize("form", [draws.drop, on_gpu(draws.drop)])


def philox(counter, key):
    """The four words of Philox 4x32-10 (Salmon et al. 2011)."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q % 2**32, (p >> 32) ^ d ^ m, p % 2**32
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return a, b, c, d


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_oracle_has_the_published_values(counter, key, words):
    assert philox(counter, key) == words


@DROP
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("features", [1, 4, 7, 70])
def test_what_the_words_say_is_dropped(form, features, dtype):
    key, stream, least = 0x9D2C5680_0123ABCD, 0xFEDCBA98, draws.threshold(0.3)
    samples = np.array([3, 2**40 + 5, 0, 17])
    x = np.random.default_rng(0).standard_normal((3, features)).astype(dtype)
    y = np.full_like(x, np.nan)
    form(x, y, samples, np.array([key], np.uint64), stream, least, 1 / 0.7)
    for row, sample in enumerate(samples[:3].tolist()):
        for j in range(features):
            words = philox((j // 4, sample % 2**32, sample >> 32, stream), (key % 2**32, key >> 32))
            kept = words[j % 4] >= least
            assert y[row, j] == (x[row, j] * dtype(1 / 0.7) if kept else 0), (row, j)


@DROP
def test_a_share_of_rate_is_dropped(form):
    x = np.ones((1000, 101), np.float32)
    form(x, x, np.arange(1000), np.array([5], np.uint64), 9, draws.threshold(0.25), 1.0)
    assert abs(x.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / x.size)
    assert np.abs(x.mean(0) - 0.75).max() < 5 * np.sqrt(0.25 * 0.75 / 1000)
    assert np.abs(x.mean(1) - 0.75).max() < 5 * np.sqrt(0.25 * 0.75 / 101)


def test_streams_differ_by_name_and_nothing_is_made_before_the_first():
    found = draws.Draws(np, 4)
    found.begin(1, np.arange(9))
    assert not found.wanted and not found.on and found.key is None
    assert found.stream("dropout1") != found.stream("dropout2")
    assert found.stream("dropout1") == draws.Draws(np, 1).stream("dropout1") < 2**32
    found.begin(2**64 - 1, np.arange(3, dtype=np.uint8))
    assert found.on and found.key[0] == 2**64 - 1 and found.samples.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("samples", [np.arange(5), np.arange(4.0), np.array([[1]]), np.array([2, -1])])
def test_other_samples_are_refused(samples):
    found = draws.Draws(np, 4)
    found.stream("a")
    with pytest.raises(UsageError, match="at most 4 numbers of at least 0, one for each sample"):
        found.begin(1, samples)
