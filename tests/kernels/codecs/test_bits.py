"""Bits in memory against Python's whole numbers."""

import numpy as np
import pytest

from psgd.kernels.codecs import bits
from psgd.kernels.jit import kernel


@kernel
def put_all(memory, values, widths):
    bit = 0
    for i in range(values.size):
        bit = bits.put(memory.ctypes.data, bit, values[i], widths[i])
    return bit


@kernel
def peek_at(payload, bit):
    return bits.peek(payload, bit)


@kernel
def zeros_below(word):
    return bits.trailing_zeros(word)


@kernel
def there_and_back(value):
    word = bits.to_bits(value)
    return word, bits.from_bits(word)


def test_bits_lie_in_order_the_lowest_first():
    rng = np.random.default_rng(1)
    widths = np.array([1, 57, 7, 32, 1, 13, 40, 8, 3, 56])
    values = np.array([int(rng.integers(0, 1 << 60)) & ((1 << int(w)) - 1) for w in widths], np.uint64)
    memory = np.full(64, 0xFF, np.uint8)
    total = put_all(memory, values, widths)
    wanted = at = 0
    for value, width in zip(values.tolist(), widths.tolist(), strict=True):
        wanted |= value << at
        at += width
    assert total == at == widths.sum()
    got = int.from_bytes(memory.tobytes(), "little")
    assert got & ((1 << at) - 1) == wanted
    assert memory[(at + 7) // 8 + bits.SLACK :].tolist() == [0xFF] * (64 - (at + 7) // 8 - bits.SLACK)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 20])
def test_peek_reads_zeros_beyond_the_end(size):
    payload = np.random.default_rng(size).integers(1, 256, size).astype(np.uint8)
    whole = int.from_bytes(payload.tobytes(), "little")
    for bit in range(8 * size + 20):
        got = int(peek_at(payload, bit))
        assert got & ((1 << 57) - 1) == whole >> bit & ((1 << 57) - 1)


def test_trailing_zeros():
    assert [zeros_below(np.uint64(x)) for x in (1, 2, 12, 1 << 63, 0)] == [0, 1, 2, 63, 64]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -2.5, 1e-45, 3.4e38, np.inf])
def test_a_float_and_its_bits(value):
    word, back = there_and_back(np.float32(value))
    assert word == int(np.float32(value).view(np.uint32))
    assert np.float32(back).tobytes() == np.float32(value).tobytes()
