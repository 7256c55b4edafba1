"""Threshold quantization with one bit an element: Strom, Interspeech 2015.

    r <- r + u
    for each r_j > tau:   send (j, +),   r_j <- r_j - tau
    for each r_j < -tau:  send (j, -),   r_j <- r_j + tau

What is sent is tau, not r_j, and tau is taken away, not all of r_j. Costs one pass over update and residual.
"""

from typing import Any, ClassVar

import numpy as np

from psgd.kernels.codecs import golomb, sampling, sparse
from psgd.kernels.codecs.bits import SLACK, load_word, trailing_zeros
from psgd.kernels.codecs.codec import Bytes, Floats, SparseCodec
from psgd.kernels.codecs.header import NBYTES, PayloadHeader
from psgd.kernels.errors import UsageError
from psgd.kernels.jit import kernel, part

LARGE = 4.0
"""Entries this many times tau say that tau is far too small."""
_SLOWER, _LEAST_EXCESS, _AT_FIRST = 0.1, 0.125, 3.0


class Threshold(SparseCodec):
    """Sends the signs of what exceeds tau.

    Args:
        n: elements, 1 to 2^31 - 1.
        dtype: float32 or float64.
        density: the share of elements to send, which tau is adapted to.
        tau: the first one; without it the first update that is not zero gives it, by a sample.
        adapt: change tau after each update that is not zero; else it stays.
        clip: clip the residual to +- clip tau after each update; 0 does not. It is lost then, and `clipped` counts it.

    Raises:
        UsageError: an invalid argument.
    """

    name: ClassVar[str] = "threshold"
    _kind: ClassVar[int] = 1
    _widths: ClassVar[tuple[int, ...]] = (sparse.SIGN,)

    def __init__(
        self,
        n: int,
        dtype: Any = np.float32,
        density: float = 1e-3,
        *,
        tau: float | None = None,
        adapt: bool = True,
        clip: float = 0.0,
    ) -> None:
        super().__init__(n, dtype, density)
        if tau is not None and not 2.0**-100 <= tau <= sparse.LIMIT:
            raise UsageError(f"codec threshold: expected a tau from 2^-100 to 2^100, got {tau}")
        if not 1.0 <= clip < np.inf and clip != 0.0:
            raise UsageError(f"codec threshold: expected a clip of 0 (none) or 1 or more, got {clip}")
        self.adapt, self.clip, self.clipped, self._bound = adapt, clip, 0, 0.0
        self._tau = np.array([tau or 0.0], np.float32)
        self._step = np.zeros(1, np.int64)
        self._entries = np.empty(min(n, 1 << golomb.MAX_LOG_BLOCK), np.uint64)  # what is not used is never in memory

    @property
    def tau(self) -> float:
        """What the next payload's signs stand for, a float32; 0 while it is not known."""
        return float(self._tau[0])

    def max_nbytes(self) -> int:
        blocks = ((self.n - 1) >> golomb.MIN_LOG_BLOCK) + 1
        return NBYTES + 5 * blocks + (self.n + 3) // 4 + SLACK

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Residual, tau, and step, the changes of tau so far."""
        return {"residual": self.residual, "tau": self._tau, "step": self._step}

    def at_bound(self) -> np.ndarray[Any, Any]:
        return np.asarray((np.abs(self.residual) >= self.dtype.type(self._bound)) & (self._bound > 0))

    def _encode(self, update: Floats, payload: Bytes, other_than_zero: bool) -> tuple[int, PayloadHeader]:
        if self._tau[0] == 0.0 and other_than_zero:
            self._tau[0] = self._first(update)
        tau, log_block = self.tau, golomb.log_block(self.density)
        work = (self._flags, self._entries, payload)
        nbytes, sent, large, clipped = encode(update, self.residual, tau, self.clip, log_block, *work)
        self.clipped, self._bound = self.clipped + clipped, self.clip * tau
        if self.adapt and other_than_zero:
            self._step[0] += 1
            self._tau[0] = self._next(tau, sent, large)
        return nbytes, PayloadHeader(self._kind, sparse.SIGN, log_block, self.n, sent, tau)

    def _first(self, update: Floats) -> float:
        tau = sampling.quantile(update, self.residual, 0.0, self.residual, self.density, 0, self._classes)
        return self._bounded(tau or 0.5 * float(max(update.max(), -update.min())))

    def _next(self, tau: float, sent: int, large: int) -> float:
        """Up fast, down slowly, both by little: what lies between an old and a lower tau is all sent at once.

        A residual that walks at random comes to tau after (tau / stride)^2 updates. So sqrt(density) is about one
        stride in tau, and a change by more makes the density jump. But residuals begin at 0: after t updates they still
        grow by a share of 1/t or so, and tau must follow.
        """
        if 2 * large > sent:
            return self._bounded(2.0 * tau)
        excess = max(sent / (self.density * self.n), _LEAST_EXCESS)
        gain = np.sqrt(self.density)
        gain = max(gain, min(1.0, _AT_FIRST / self._step[0])) if excess > 1.0 else _SLOWER * gain
        return self._bounded(tau * min(2.0, excess**gain))

    def _bounded(self, tau: float) -> float:
        return float(min(sparse.LIMIT, max(2.0**-100, tau)))


@kernel
def encode(
    update: np.ndarray,
    residual: np.ndarray,
    tau: float,
    clip: float,
    log_block: int,
    flags: np.ndarray,
    entries: np.ndarray,
    payload: np.ndarray,
) -> tuple[int, int, int, int]:
    """Writes directory and blocks of a payload.

    Args:
        update: finite.
        residual: changed in place.
        tau: a float32; 0 sends nothing.
        clip: the multiple of tau to clip to, or 0.
        log_block: logarithm of the block length.
        flags: bool of length `CHUNK`, all false.
        entries: uint64, a block's length at least, or n.
        payload: uint8.

    Returns:
        The payload's length, entries sent, how many of them exceeded `LARGE` tau, and elements clipped.
    """
    n = update.size
    blocks = ((n - 1) >> log_block) + 1
    at = NBYTES + 4 * blocks
    sent, large, clipped = 0, 0, 0
    tau_ = residual.dtype.type(tau)
    bound = residual.dtype.type(clip * tau)
    for block in range(blocks):
        first = block << log_block
        length = min(n - first, 1 << log_block)
        count = 0
        for start in range(0, length, sparse.CHUNK):
            a = first + start
            b = min(first + length, a + sparse.CHUNK)
            found, beyond = _select(update[a:b], residual[a:b], tau_, flags, entries[count:], start)
            count += found
            large += beyond
            if bound > 0:
                clipped += _clip(residual[a:b], bound)
        at = golomb.write_block(payload, at, NBYTES + 4 * block, entries[:count], sparse.SIGN, length, log_block)
        sent += count
    return at, sent, large, clipped


@part
def _select(
    update: np.ndarray, residual: np.ndarray, tau: float, flags: np.ndarray, entries: np.ndarray, start: int
) -> tuple[int, int]:
    """Adds a chunk, and takes what is sent from it; `start` is its first element's place in the block."""
    limit = tau if tau > 0 else residual.dtype.type(np.inf)
    for i in range(update.size):
        value = residual[i] + update[i]
        residual[i] = value
        flags[i] = abs(value) > limit
    far = residual.dtype.type(LARGE) * limit
    count, large = 0, 0
    for word in range((update.size + 7) >> 3):
        eight = load_word(flags.ctypes.data + 8 * word)
        while eight != 0:
            i = 8 * word + (trailing_zeros(eight) >> 3)
            eight &= eight - np.uint64(1)
            if i >= update.size:  # left from a longer chunk
                break
            value = residual[i]
            large += abs(value) > far
            residual[i] = value - tau if value > 0 else value + tau
            entries[count] = np.uint64(start + i) << np.uint64(32) | np.uint64(value < 0)
            count += 1
    return count, large


@part
def _clip(residual: np.ndarray, bound: float) -> int:
    clipped = 0
    for i in range(residual.size):
        if abs(residual[i]) > bound:
            residual[i] = bound if residual[i] > 0 else -bound
            clipped += 1
    return clipped
