"""One bit for each element, with error feedback: 1-bit SGD (Seide, Fu, Droppo, Li and Yu, Interspeech 2014).

    r <- r + u
    for each block:  a, b <- the means of its r_j < 0 and r_j >= 0;  send a, b and the signs;  r_j <- r_j - (a or b)

In a block whose elements are all 0 they are sent as exactly 0; one that is 0 among others is sent as b, and
corrected later.
"""

from typing import Any, ClassVar

import numpy as np

from psgd.kernels.codecs.bits import SLACK, from_bits, load_word, peek, put, to_bits
from psgd.kernels.codecs.codec import Bytes, Codec, Floats
from psgd.kernels.codecs.header import NBYTES, PayloadHeader
from psgd.kernels.errors import UsageError
from psgd.kernels.jit import kernel, part

LANES = 16
"""Sums are made in this many, element j in sum j modulo it, so that every device rounds alike."""
_LOGS = range(6, 21)


class OneBit(Codec):
    """Sends all signs, and two values for each block.

    Args:
        n: elements, 1 to 2^31 - 1.
        dtype: float32 or float64.
        density: has no effect.
        block: elements of a block, a power of two from 64 to 2^20: 64 bits for each.

    Raises:
        UsageError: an invalid argument.
    """

    name: ClassVar[str] = "onebit"
    _kind: ClassVar[int] = 2

    def __init__(self, n: int, dtype: Any = np.float32, density: float = 1.0, *, block: int = 4096) -> None:
        super().__init__(n, dtype, density)
        self._log_block = block.bit_length() - 1
        if block != 1 << self._log_block or self._log_block not in _LOGS:
            raise UsageError(f"codec onebit: expected a block of a power of two from 64 to 2^20, got {block}")
        self._below, self._above = np.empty(LANES), np.empty(LANES)

    def max_nbytes(self) -> int:
        return _length(self.n, self._log_block) + SLACK

    def _encode(self, update: Floats, payload: Bytes, other_than_zero: bool) -> tuple[int, PayloadHeader]:
        encode(update, self.residual, self._log_block, self._below, self._above, payload)
        header = PayloadHeader(self._kind, 1, self._log_block, self.n, self.n, 0.0)
        return _length(self.n, self._log_block), header

    def _can(self, stated: PayloadHeader) -> bool:
        return (stated.width, stated.count, stated.tau) == (1, self.n, 0.0) and stated.log_block in _LOGS

    def _add(self, payload: Bytes, out: Floats, stated: PayloadHeader) -> bool:
        return payload.size == _length(self.n, stated.log_block) and bool(add(payload, out, stated.log_block))


def _length(n: int, log_block: int) -> int:
    return NBYTES + 8 * (((n - 1) >> log_block) + 1) + (n + 7) // 8


@kernel
def encode(
    update: np.ndarray,
    residual: np.ndarray,
    log_block: int,
    below: np.ndarray,
    above: np.ndarray,
    payload: np.ndarray,
) -> None:
    """Writes all of a payload but its header.

    Args:
        update: finite.
        residual: changed in place.
        log_block: logarithm of the block length.
        below: float64 of length `LANES`, overwritten.
        above: another.
        payload: uint8.
    """
    n = update.size
    blocks = ((n - 1) >> log_block) + 1
    address = payload.ctypes.data
    bit = 8 * (NBYTES + 8 * blocks)
    for block in range(blocks):
        a = block << log_block
        b = min(n, a + (1 << log_block))
        count = _accumulate(update[a:b], residual[a:b], below, above)
        low = np.float32(_total(below) / max(1, b - a - count))
        high = np.float32(_total(above) / max(1, count))
        means = to_bits(low) | to_bits(high) << np.uint64(32)
        for i in range(8):
            payload[NBYTES + 8 * block + i] = np.uint8(means >> np.uint64(8 * i) & np.uint64(255))
        bit = _send(residual[a:b], residual.dtype.type(low), residual.dtype.type(high), address, bit)


@part
def _accumulate(update: np.ndarray, residual: np.ndarray, below: np.ndarray, above: np.ndarray) -> int:
    below[:] = 0
    above[:] = 0
    zero = residual.dtype.type(0)
    count = 0
    for start in range(0, residual.size, LANES):
        for lane in range(min(LANES, residual.size - start)):
            value = residual[start + lane] + update[start + lane]
            residual[start + lane] = value
            high = value if value >= zero else zero
            above[lane] += high
            below[lane] += value - high
            count += value >= zero
    return count


@part
def _total(lanes: np.ndarray) -> float:
    half = LANES >> 1
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half >>= 1
    total: float = lanes[0]
    return total


@part
def _send(residual: np.ndarray, low: float, high: float, address: int, bit: int) -> int:
    """Writes a block's signs, 32 at a time, and takes what they say from it."""
    zero = residual.dtype.type(0)
    for start in range(0, residual.size, 32):
        word = np.uint64(0)
        width = min(32, residual.size - start)
        for i in range(width):
            value = residual[start + i]
            word |= np.uint64(value >= zero) << np.uint64(i)
            residual[start + i] = value - (high if value >= zero else low)
        bit = put(address, bit, word, width)
    return bit


@kernel
def add(payload: np.ndarray, out: np.ndarray, log_block: int) -> bool:
    """Adds a payload of the right length to `out`; False, and nothing, where a value is not finite."""
    n = out.size
    blocks = ((n - 1) >> log_block) + 1
    for block in range(blocks):
        means = load_word(payload.ctypes.data + NBYTES + 8 * block)
        low, high = from_bits(means & np.uint64(0xFFFFFFFF)), from_bits(means >> np.uint64(32))
        if not (abs(low) < np.inf and abs(high) < np.inf):
            return False
    bit = 8 * (NBYTES + 8 * blocks)
    for block in range(blocks):
        means = load_word(payload.ctypes.data + NBYTES + 8 * block)
        low = out.dtype.type(from_bits(means & np.uint64(0xFFFFFFFF)))
        high = out.dtype.type(from_bits(means >> np.uint64(32)))
        first = block << log_block
        part_of = out[first : min(n, first + (1 << log_block))]
        for start in range(0, part_of.size, 32):
            word = peek(payload, bit + first + start)
            for i in range(min(32, part_of.size - start)):
                part_of[start + i] += high if word >> np.uint64(i) & np.uint64(1) else low
    return True
