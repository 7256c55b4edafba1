"""Random numbers by key: what they depend on, and dropout by them.

Philox 4x32-10 (Salmon et al. 2011) is a function of a key and a counter. The key stands for the step, the counter for
a sample's number, an element of it, and a layer. So who computes a sample, when, and beside which others does not
matter, nothing has to be saved or sent, and backward draws the same again.
"""

import hashlib
import math
from typing import Any

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.errors import UsageError
from psgd.kernels.jit import lazy_kernel


class Draws:
    """By what the layers of one context draw: a key, and the numbers of the samples.

    Attributes:
        wanted: some layer draws.
        on: they draw now; else (in evaluation) they do not.
        key: (1,) uint64 on the device; None where nothing is wanted, as `samples`.
        samples: (batch,) int64 on the device.
    """

    def __init__(self, xp: Any, batch: int) -> None:
        self._xp, self._batch = xp, batch
        self.wanted = self.on = False
        self.key: Array = None
        self.samples: Array = None

    def stream(self, name: str) -> int:
        """A layer of that name in the whole model is going to draw. Returns its word of the counter."""
        if not self.wanted:
            self.wanted = True
            self.key = self._xp.zeros(1, np.uint64)
            self.samples = self._xp.zeros(self._batch, np.int64)
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")

    def begin(self, key: int, samples: Array) -> None:
        """The next passes draw by these; without effect where no layer draws.

        Args:
            key: 64 bits.
            samples: (n,) integers on the host, one for each sample of the pass: its number, at least 0.

        Raises:
            UsageError: more samples than the context is for, or no such numbers.
        """
        if not self.wanted:
            return
        if samples.ndim != 1 or samples.dtype.kind not in "iu" or len(samples) > self._batch or (samples < 0).any():
            raise UsageError(
                f"draw: samples: expected at most {self._batch} numbers of at least 0, one for each sample, got "
                f"{samples.dtype} of shape {samples.shape}"
            )
        self.key[...] = self._xp.asarray(np.array([key], np.uint64))
        self.samples[: len(samples)] = self._xp.asarray(samples, np.int64)
        self.on = True


def threshold(rate: float) -> int:
    """An element is dropped where its 32 random bits are less than this."""
    return math.floor(rate * 2**32)


@by_device
@lazy_kernel
def drop(x: Array, y: Array, samples: Array, key: Array, stream: int, least: int, scale: float) -> None:
    """Computes y = x times `scale`, or 0 where an element is dropped.

    Args:
        x: (n, features), float32 or float64, C-contiguous.
        y: shape and dtype of x; may be x.
        samples: at least n int64.
        key: (1,) uint64.
        stream: 32 bits.
        least: what `threshold` returns.
        scale: of what is kept.
    """
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    factor = x.dtype.type(scale)
    zero = x.dtype.type(0)
    features = x.shape[1]
    words = np.empty(4, np.uint64)
    for r in range(x.shape[0]):
        sample = np.uint64(samples[r])
        for start in range(0, features, 4):
            c0, c1, c2, c3 = np.uint64(start // 4), sample & low, sample >> half, np.uint64(stream)
            k0, k1 = key[0] & low, key[0] >> half
            for _ in range(10):
                p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
                c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
                k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
            words[0], words[1], words[2], words[3] = c0, c1, c2, c3
            for j in range(start, min(start + 4, features)):
                y[r, j] = x[r, j] * factor if words[j - start] >= np.uint64(least) else zero
