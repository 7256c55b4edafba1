"""Payloads of some of a vector's elements: a directory of blocks, then each block's coded positions.

A block can be decoded without those before it: the directory has every one's bits, and their sums are the offsets.
"""

import numpy as np

from psgd.kernels.codecs import golomb
from psgd.kernels.codecs.bits import from_bits, peek
from psgd.kernels.codecs.header import NBYTES
from psgd.kernels.jit import kernel, part
from psgd.kernels.memory.cacheline import prefetch

CHUNK = 4096
"""Elements that are looked at together, few enough to stay in the first-level cache between two looks."""
SIGN, HALF, SINGLE = 1, 16, 32
"""Bits that an entry has of its own: its sign, or its value as a bfloat16 or a float32."""
LIMIT = 2.0**100
AHEAD = 64
"""Entries that are decoded before the first of them is added, while their elements are on their way to the cache."""


@kernel
def add(
    payload: np.ndarray,
    out: np.ndarray,
    count: int,
    tau: float,
    width: int,
    log_block: int,
    places: np.ndarray,
    values: np.ndarray,
    dry: bool,
) -> bool:
    """Decodes a payload and adds it to `out`, or with `dry` only looks whether that can be done.

    Reads nothing outside `payload` and writes nothing outside `out`, whatever the bytes are.

    Args:
        payload: uint8; its header has been read.
        out: of the dtype that the codec has.
        count: entries that the header says.
        tau: what a sign stands for.
        width: `SIGN`, `HALF` or `SINGLE`.
        log_block: logarithm of the block length.
        places: int64 of length `AHEAD`, overwritten.
        values: of length `AHEAD` and the dtype of `out`, overwritten.
        dry: leave `out` as it is.

    Returns:
        Whether it is what an encoder may have written: `count` entries in `out.size` elements, finite values, and no
        byte left.
    """
    n = out.size
    blocks = ((n - 1) >> log_block) + 1
    at = NBYTES + 4 * blocks
    if at > payload.size:
        return False
    found = 0
    tau_ = out.dtype.type(tau)
    for block in range(blocks):
        first = block << log_block
        code, bits = golomb.read_block(payload, NBYTES + 4 * block)
        bit = 8 * at
        end = bit + bits
        at += (bits + 7) >> 3
        if code < 0 or at > payload.size:
            return False
        here, stop = first - 1, min(n, first + (1 << log_block))
        while bit < end:
            gap, bit = golomb.read_gap(payload, bit, code, log_block)
            here += gap + 1
            if here >= stop:
                return False
            own = peek(payload, bit)
            bit += width
            if width == SIGN:
                value = tau_ if own & np.uint64(1) == 0 else -tau_
            else:
                value = out.dtype.type(_value(own, width))
                if not abs(value) < np.inf:
                    return False
            if not dry:
                prefetch(out.ctypes.data + here * out.itemsize)
                slot = found & (AHEAD - 1)
                places[slot], values[slot] = here, value
                if slot == AHEAD - 1:
                    _scatter(out, places, values)
            found += 1
        if bit != end:
            return False
    if not dry:
        rest = found & (AHEAD - 1)
        _scatter(out, places[:rest], values[:rest])
    return found == count and at == payload.size


@part
def _scatter(out: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    for i in range(places.size):
        out[places[i]] += values[i]


@part
def _value(bits: int, width: int) -> float:
    value: float = from_bits(bits << np.uint64(16) if width == HALF else bits)
    return value


@kernel
def look(update: np.ndarray) -> int:
    """-1 where a value is NaN, infinite or at least `LIMIT`; 0 where all are zero; else 1."""
    limit, zero = update.dtype.type(LIMIT), update.dtype.type(0)
    wrong, other = False, False
    for i in range(update.size):
        wrong |= not abs(update[i]) < limit
        other |= update[i] != zero
    return -1 if wrong else np.int64(other)
