"""Decoding of sparse payloads made by hand, and what is no payload."""

import numpy as np
import pytest

from psgd.kernels.codecs import golomb, sparse
from psgd.kernels.codecs.header import NBYTES
from psgd.kernels.jit import kernel

LOG = golomb.MIN_LOG_BLOCK


@kernel
def write(payload, at, directory, entries, width, length):
    return golomb.write_block(payload, at, directory, entries, width, length, 12)


def payload_of(n, places, own, width):
    """A payload's bytes after a header of zeros, which `add` does not read."""
    blocks = (n - 1 >> LOG) + 1
    payload = np.zeros(NBYTES + 4 * blocks + 16 * len(places) + 8 * n + 64, np.uint8)
    at = NBYTES + 4 * blocks
    for block in range(blocks):
        here = (places >> LOG) == block
        entries = (places[here] - (block << LOG)).astype(np.uint64) << np.uint64(32) | own[here]
        at = write(payload, at, NBYTES + 4 * block, entries, width, min(1 << LOG, n - (block << LOG)))
    return payload[:at]


def add(payload, out, count, tau, width, dry=False):
    places, values = np.zeros(sparse.AHEAD, np.int64), np.zeros(sparse.AHEAD, out.dtype)
    return sparse.add(payload, out, count, tau, width, LOG, places, values, dry)


@pytest.fixture
def made():
    rng = np.random.default_rng(5)
    n = 10_001
    places = np.flatnonzero(rng.random(n) < 0.03)
    return n, places, rng.normal(size=places.size).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [sparse.SIGN, sparse.HALF, sparse.SINGLE])
def test_entries_are_added_where_they_belong(made, width, dtype):
    n, places, values = made
    words = values.view(np.uint32)
    if width == sparse.SIGN:
        own, told = (values < 0).astype(np.uint64), np.where(values < 0, -0.25, 0.25)
    elif width == sparse.HALF:
        own, told = (words >> 16).astype(np.uint64), (words >> 16 << 16).view(np.float32)
    else:
        own, told = words.astype(np.uint64), values
    payload = payload_of(n, places, own, width)
    out = np.ones(n, dtype)
    assert add(payload, out, places.size, 0.25, width, dry=True)
    assert (out == 1).all()
    assert add(payload, out, places.size, 0.25, width)
    wanted = np.ones(n, dtype)
    wanted[places] += told.astype(dtype)
    np.testing.assert_array_equal(out, wanted)


def test_what_no_encoder_writes_is_refused(made):
    n, places, values = made
    own = values.view(np.uint32).astype(np.uint64)
    payload = payload_of(n, places, own, sparse.SINGLE)
    out = np.zeros(n, np.float32)
    assert not add(payload, out, places.size + 1, 0.0, sparse.SINGLE, dry=True), "another count"
    assert not add(payload[:-1], out, places.size, 0.0, sparse.SINGLE, dry=True), "cut off"
    assert not add(np.append(payload, np.uint8(0)), out, places.size, 0.0, sparse.SINGLE, dry=True), "a byte more"
    assert not add(payload[: NBYTES + 3], out, places.size, 0.0, sparse.SINGLE, dry=True), "no directory"
    assert not add(payload, out[:-4000], places.size, 0.0, sparse.SINGLE, dry=True), "a shorter vector"
    own[3] = np.float32(np.inf).view(np.uint32)
    assert not add(payload_of(n, places, own, sparse.SINGLE), out, places.size, 0.0, sparse.SINGLE), "infinite"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_look(dtype):
    zeros = np.zeros(9, dtype)
    assert sparse.look(zeros) == 0 and sparse.look(zeros[:0]) == 0
    for value, said in ((1e-30, 1), (-1.0, 1), (sparse.LIMIT, -1), (-np.inf, -1), (np.nan, -1)):
        update = zeros.copy()
        update[7] = value
        assert sparse.look(update) == said
