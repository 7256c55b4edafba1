"""Golomb-Rice codes against their definition, in Python's whole numbers, and blocks there and back."""

import numpy as np
import pytest

from psgd.kernels.codecs import bits, golomb
from psgd.kernels.jit import kernel


@kernel
def split(gap, code):
    return golomb.split(gap, code)


@kernel
def code_for(count, length):
    return golomb.code_for(count, length)


@kernel
def write(payload, entries, width, length, log_length):
    return golomb.write_block(payload, 4, 0, entries, width, length, log_length)


@kernel
def read(payload, count, width, log_length, places, own):
    code, size = golomb.read_block(payload, 0)
    bit, here = 32, -1
    for i in range(count):
        gap, bit = golomb.read_gap(payload, bit, code, log_length)
        here += gap + 1
        places[i], own[i] = here, bits.peek(payload, bit) & ((np.uint64(1) << np.uint64(width)) - np.uint64(1))
        bit += width
    return code, size, bit - 32


def m_of(code):
    return (3 << (code // 2)) // 2 if code % 2 else 1 << (code // 2)


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 10, 11])
def test_a_gap_is_a_quotient_and_a_rest_without_a_prefix_in_common(code):
    seen = {}
    for gap in range(5 * m_of(code)):
        quotient, rest, width = split(gap, code)
        assert quotient == gap // m_of(code)
        bits_of = "".join(str(rest >> i & 1) for i in range(width))
        seen.setdefault(quotient, []).append(bits_of)
    for texts in seen.values():
        assert len(texts) == m_of(code)
        assert not any(a != b and b.startswith(a) for a in texts for b in texts)


@pytest.mark.parametrize(("count", "length"), [(1, 4096), (40, 4096), (4096, 4096), (819, 4096), (1, 1 << 22)])
def test_the_code_has_the_largest_m_that_fits(count, length):
    code = code_for(count, length)
    fits = [c for c in range(golomb.LAST_CODE + 1) if c != 1 and (c == 0 or 5 * m_of(c) * count <= 4 * length)]
    assert m_of(code) == max(map(m_of, fits))


@pytest.mark.parametrize("width", [1, 16, 32])
@pytest.mark.parametrize("share", [0.0, 0.0005, 0.05, 0.6, 1.0])
def test_a_block_comes_back(width, share):
    length, rng = 4096, np.random.default_rng(7)
    places = np.flatnonzero(rng.random(length) < share)
    own = rng.integers(0, 1 << width, places.size, dtype=np.uint64)
    payload = np.zeros(4 + 8 * length + 64 * places.size // 8 + 64, np.uint8)
    end = write(payload, places.astype(np.uint64) << np.uint64(32) | own, width, length, 12)
    got, values = np.zeros(places.size, np.int64), np.zeros(places.size, np.uint64)
    code, size, used = read(payload[:end], places.size, width, 12, got, values)
    assert code >= 0 and size == used and end == 4 + (used + 7) // 8
    np.testing.assert_array_equal(got, places)
    np.testing.assert_array_equal(values, own)
    assert used <= length + places.size * width, "no bitmap is smaller"


def test_a_gap_beyond_all_quotients_is_written_as_it_is():
    places = np.array([0, 1, 2, 3, 4, 4000])
    payload = np.zeros(200, np.uint8)
    end = write(payload, places.astype(np.uint64) << np.uint64(32), 1, 4096, 12)
    got, own = np.zeros(6, np.int64), np.zeros(6, np.uint64)
    read(payload[:end], 6, 1, 12, got, own)
    assert got.tolist() == places.tolist()


def test_block_lengths_follow_the_density():
    assert golomb.log_block(1.0) == golomb.MIN_LOG_BLOCK
    assert golomb.log_block(1 / 64) == 16
    assert golomb.log_block(1e-9) == golomb.MAX_LOG_BLOCK
