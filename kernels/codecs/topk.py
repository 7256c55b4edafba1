"""The largest elements with their values: Deep Gradient Compression (Lin, Han, Mao, Wang and Dally, ICLR 2018).

    u <- m u + g;   v <- v + u;   for the largest |v_j| send (j, v_j), then v_j <- v_j - what was sent and u_j <- 0

Momentum is corrected (it acts before what is delayed, not after) and masked where it has been sent. v is the residual.
"Largest" is by a threshold from a sample, new for each update, so the number that is sent varies; what a value loses in
16 bits stays in v.
"""

from typing import Any, ClassVar

import numpy as np

from psgd.kernels.codecs import golomb, sampling, sparse
from psgd.kernels.codecs.bits import SLACK, from_bits, load_word, to_bits, trailing_zeros
from psgd.kernels.codecs.codec import Bytes, Floats, SparseCodec
from psgd.kernels.codecs.header import NBYTES, PayloadHeader
from psgd.kernels.errors import UsageError
from psgd.kernels.jit import kernel, part

WIDTHS = {"float32": sparse.SINGLE, "bfloat16": sparse.HALF}
_MOST_IN_BLOCK = 1 << 20  # so that the directory can say a block's bits
_LEAST = float(np.float32(1e-45))  # the smallest above zero; one type with other limits


class TopK(SparseCodec):
    """Sends the largest elements.

    Args:
        n: elements, 1 to 2^31 - 1.
        dtype: float32 or float64.
        density: the share of elements to send. Twice as many are sent at most, and the rest of them later.
        momentum: m, 0 to less than 1. An optimizer that follows it should have none.
        values: "float32" or "bfloat16".
        max_density: the most that `density` will be set to; by default what it is.

    Raises:
        UsageError: an invalid argument.
    """

    name: ClassVar[str] = "topk"
    _kind: ClassVar[int] = 3
    _widths: ClassVar[tuple[int, ...]] = tuple(WIDTHS.values())

    def __init__(
        self,
        n: int,
        dtype: Any = np.float32,
        density: float = 1e-3,
        *,
        momentum: float = 0.9,
        values: str = "float32",
        max_density: float | None = None,
    ) -> None:
        self.max_density = density if max_density is None else min(1.0, max_density)
        super().__init__(n, dtype, density)
        if not 0.0 <= momentum < 1.0:
            raise UsageError(f"codec topk: expected a momentum from 0 to less than 1, got {momentum}")
        if values not in WIDTHS:
            raise UsageError(f"codec topk: expected values float32 or bfloat16, got {values!r}")
        self.momentum, self._width = momentum, WIDTHS[values]
        self.velocity: Floats = np.zeros(n, self.dtype)
        self._step = np.zeros(1, np.int64)
        self._entries = np.empty(min(n, _MOST_IN_BLOCK), np.uint64)  # what is not used is never in memory

    def max_nbytes(self) -> int:
        blocks = ((self.n - 1) >> golomb.log_block(self.max_density)) + 1
        return NBYTES + 5 * blocks + 12 * self._most(self.max_density) + SLACK

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Residual, velocity, and step, which says what is looked at."""
        return {"residual": self.residual, "velocity": self.velocity, "step": self._step}

    def send_whole(self, update: Floats) -> None:
        """Momentum acts on it, and continues: what is sent at once is not masked."""
        np.multiply(self.velocity, self.dtype.type(self.momentum), out=self.velocity)
        np.add(self.velocity, update, out=self.velocity)
        update[:] = self.velocity
        super().send_whole(update)

    def before_sending(self, update: Floats) -> Floats:
        return np.asarray(self.residual + (self.dtype.type(self.momentum) * self.velocity + update))

    def _most(self, density: float) -> int:
        return min(self.n, 2 * int(np.ceil(density * self.n)) + 64)

    def _encode(self, update: Floats, payload: Bytes, other_than_zero: bool) -> tuple[int, PayloadHeader]:
        state = (update, self.velocity, self.momentum, self.residual)
        limit = sampling.quantile(*state, self.density, int(self._step[0]), self._classes)
        log_block, most = golomb.log_block(self.density), self._most(self.density)
        work = (self._flags, self._entries, payload)
        nbytes, sent = encode(*state, max(_LEAST, limit), most, self._width, log_block, *work)
        self._step[0] += 1
        return nbytes, PayloadHeader(self._kind, self._width, log_block, self.n, sent, 0.0)


@kernel
def encode(
    update: np.ndarray,
    velocity: np.ndarray,
    momentum: float,
    residual: np.ndarray,
    limit: float,
    most: int,
    width: int,
    log_block: int,
    flags: np.ndarray,
    entries: np.ndarray,
    payload: np.ndarray,
) -> tuple[int, int]:
    """Writes directory and blocks of a payload.

    Args:
        update: finite.
        velocity: changed in place.
        momentum: what it is multiplied by.
        residual: changed in place.
        limit: elements of at least this size are sent, above 0.
        most: of them, the first ones.
        width: 16 or 32.
        log_block: logarithm of the block length.
        flags: bool of length `CHUNK`.
        entries: uint64; no more than this are sent of a block.
        payload: uint8.

    Returns:
        The payload's length, and the entries sent.
    """
    n = update.size
    blocks = ((n - 1) >> log_block) + 1
    at = NBYTES + 4 * blocks
    sent = 0
    momentum_, limit_ = residual.dtype.type(momentum), residual.dtype.type(limit)
    for block in range(blocks):
        first = block << log_block
        length = min(n - first, 1 << log_block)
        count = 0
        for start in range(0, length, sparse.CHUNK):
            a = first + start
            b = min(first + length, a + sparse.CHUNK)
            _accumulate(update[a:b], velocity[a:b], momentum_, residual[a:b], limit_, flags)
            free = entries[count : min(entries.size, count + most - sent)]
            found = _take(velocity[a:b], residual[a:b], flags, free, width, start)
            count += found
            sent += found
        at = golomb.write_block(payload, at, NBYTES + 4 * block, entries[:count], width, length, log_block)
    return at, sent


@part
def _accumulate(
    update: np.ndarray, velocity: np.ndarray, momentum: float, residual: np.ndarray, limit: float, flags: np.ndarray
) -> None:
    for i in range(update.size):
        speed = momentum * velocity[i] + update[i]
        velocity[i] = speed
        value = residual[i] + speed
        residual[i] = value
        flags[i] = abs(value) >= limit


@part
def _take(
    velocity: np.ndarray, residual: np.ndarray, flags: np.ndarray, entries: np.ndarray, width: int, start: int
) -> int:
    """Takes what is sent from a chunk, as far as there is room; `start` is its first element's place in the block."""
    count = 0
    for word in range((residual.size + 7) >> 3):
        eight = load_word(flags.ctypes.data + 8 * word)
        while eight != 0:
            i = 8 * word + (trailing_zeros(eight) >> 3)
            eight &= eight - np.uint64(1)
            if i >= residual.size or count == entries.size:
                return count
            own = to_bits(np.float32(residual[i]))
            if width == sparse.HALF:  # to the nearest, ties to even
                own = (own + np.uint64(0x7FFF) + (own >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
                residual[i] -= from_bits(own << np.uint64(16))
            else:
                residual[i] -= from_bits(own)
            velocity[i] = 0
            entries[count] = np.uint64(start + i) << np.uint64(32) | own
            count += 1
    return count
