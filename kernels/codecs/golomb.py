"""Sorted positions as Golomb-Rice coded gaps, a block at a time, each position with some bits of its own.

Where each element of a block is sent with probability p, the gap before the next one is geometric, and a Golomb code
with m near 0.69/p is within a percent of its entropy (Golomb 1966; Gallager and van Voorhis 1975). With m a power of
two (Rice) it is shifts and masks; with 3/2 of one between each two it loses half. `docs/compression.md` has the bits.
"""

import numpy as np

from psgd.kernels.codecs.bits import peek, put, trailing_zeros
from psgd.kernels.jit import part

MIN_LOG_BLOCK, MAX_LOG_BLOCK = 12, 22
MOST_BITS = (1 << 26) - 1
ESCAPE = 32  # zeros: not a quotient, the gap itself follows
UNARY, LAST_CODE = 0, 2 * MAX_LOG_BLOCK
_COUNTED = 1024  # entries of a block, at least, where their density is the expected one


def log_block(density: float) -> int:
    """The logarithm of the block length for which the directory costs little at a density."""
    return int(np.clip(np.ceil(np.log2(_COUNTED / density)), MIN_LOG_BLOCK, MAX_LOG_BLOCK))


@part
def code_for(count: int, length: int) -> int:
    """The code with the largest m that has 5 m count <= 4 length: 2k for m = 2^k, 2k + 1 for m = 3/2 2^k."""
    k = 0
    while 10 * count << k <= 4 * length and k < MAX_LOG_BLOCK:
        k += 1
    three_halves = k > 0 and k < MAX_LOG_BLOCK and 15 * count << (k - 1) <= 4 * length
    return 2 * k + 1 if three_halves else 2 * k


@part
def split(gap: int, code: int) -> tuple[int, int, int]:
    """A gap's quotient by m; the bits of its rest, and how many these are."""
    k = code >> 1
    if code & 1 == 0:
        return gap >> k, gap & ((1 << k) - 1), k
    upper = gap >> (k - 1)
    quotient = upper // 3
    digit = upper - 3 * quotient
    low = gap & ((1 << (k - 1)) - 1)
    if digit == 0:
        return quotient, low << 1, k
    return quotient, 1 | (digit - 1) << 1 | low << 2, k + 1


@part
def size(entries: np.ndarray, code: int, width: int, log_length: int) -> int:
    """The bits that `write_block` would need with a code."""
    bits = entries.size * width
    last = -1
    for i in range(entries.size):
        position = np.int64(entries[i] >> np.uint64(32))
        quotient, _, rest = split(position - last - 1, code)
        bits += quotient + 1 + rest if quotient < ESCAPE else ESCAPE + log_length
        last = position
    return bits


@part
def write_block(
    payload: np.ndarray, at: int, directory: int, entries: np.ndarray, width: int, length: int, log_length: int
) -> int:
    """Codes a block and writes its word of the directory.

    Args:
        payload: uint8, written from `at` on: at most 57 + `width` bits an entry, with `width` 1 also at most 2 bits an
            element of the block, and `SLACK`.
        at: byte of the block's first bit.
        directory: byte of the block's directory word.
        entries: uint64, ascending: position in the block << 32 | the `width` bits of its own.
        width: 1 to 32.
        length: elements in this block.
        log_length: logarithm of a whole block's.

    Returns:
        The byte of the next block.
    """
    code = code_for(entries.size, length)
    bits = size(entries, code, width, log_length)
    if bits > length + entries.size * width and size(entries, UNARY, width, log_length) < bits:
        code = UNARY  # a bit for each element, and its own for each that is sent: no bitmap is smaller
    address = payload.ctypes.data + at
    bit, last = 0, -1
    for i in range(entries.size):
        position = np.int64(entries[i] >> np.uint64(32))
        gap = position - last - 1
        quotient, rest, rest_width = split(gap, code)
        if quotient < ESCAPE:
            bit = put(address, bit, np.uint64(1) << np.uint64(quotient), quotient + 1)
            bit = put(address, bit, np.uint64(rest), rest_width)
        else:
            bit = put(address, bit, np.uint64(0), ESCAPE)
            bit = put(address, bit, np.uint64(gap), log_length)
        bit = put(address, bit, entries[i] & np.uint64(0xFFFFFFFF), width)
        last = position
    word = bit << 6 | code
    for i in range(4):
        payload[directory + i] = np.uint8(word >> (8 * i) & 255)
    return at + ((bit + 7) >> 3)


@part
def read_block(payload: np.ndarray, directory: int) -> tuple[int, int]:
    """A block's code and bits; code -1 where there is no such code."""
    word = np.int64(peek(payload, 8 * directory) & np.uint64(0xFFFFFFFF))
    code = word & 63
    return (-1 if code == 1 or code > LAST_CODE else code), word >> 6


@part
def read_gap(payload: np.ndarray, bit: int, code: int, log_length: int) -> tuple[int, int]:
    """The gap at a bit position, and the position after it."""
    word = peek(payload, bit)
    quotient = trailing_zeros(word)
    if quotient >= ESCAPE:
        gap = peek(payload, bit + ESCAPE) & ((np.uint64(1) << np.uint64(log_length)) - np.uint64(1))
        return np.int64(gap), bit + ESCAPE + log_length
    word >>= np.uint64(quotient + 1)  # 25 bits left, of which a rest has 23 at most
    bit += quotient + 1
    k = code >> 1
    if code & 1 == 0:
        return (quotient << k) + np.int64(word & ((np.uint64(1) << np.uint64(k)) - np.uint64(1))), bit + k
    low = (np.uint64(1) << np.uint64(k - 1)) - np.uint64(1)
    if word & np.uint64(1) == 0:
        return (3 * quotient << (k - 1)) + np.int64(word >> np.uint64(1) & low), bit + k
    digit = 1 + np.int64(word >> np.uint64(1) & np.uint64(1))
    return ((3 * quotient + digit) << (k - 1)) + np.int64(word >> np.uint64(2) & low), bit + k + 1
