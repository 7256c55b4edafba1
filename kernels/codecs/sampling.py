"""The value that about a given share of a vector's elements exceed, from a sample.

Finding it exactly costs more than sending the vector. Lin et al. (2018) sort a sample; here it is counted into
classes of 0.4 % by the leading bits of its values, in a buffer that is made once.
"""

import numpy as np

from psgd.kernels.codecs.bits import from_bits, to_bits
from psgd.kernels.jit import kernel

CLASSES = 1 << 16
_LEAST, _ABOVE = 1 << 14, 32  # values in a sample, and those of them above the result, at least


@kernel
def quantile(
    update: np.ndarray,
    velocity: np.ndarray,
    momentum: float,
    residual: np.ndarray,
    density: float,
    seed: int,
    classes: np.ndarray,
) -> float:
    """A float32 that about `density` n of the n values |residual + (momentum velocity + update)| reach.

    Args:
        update: finite, as are the others.
        velocity: of the same length and dtype.
        momentum: what the velocity is multiplied by.
        residual: of the same length and dtype.
        density: above 0, at most 1.
        seed: says which elements are looked at; one of each stretch of equal length.
        classes: int32 of length `CLASSES`, overwritten.
    """
    n, momentum_ = update.size, update.dtype.type(momentum)
    stride = max(1, np.int64(n / max(_LEAST, _ABOVE / density)))
    sample = n // stride
    classes[:] = 0
    chance = np.uint64(2 * seed + 1) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(sample):
        chance = chance * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        j = i * stride + np.int64((chance >> np.uint64(33)) % np.uint64(stride))
        value = np.float32(residual[j] + (momentum_ * velocity[j] + update[j]))
        classes[np.int64(to_bits(abs(value)) >> np.uint64(15))] += 1
    above, wanted = 0, max(1, round(density * sample))
    for i in range(CLASSES - 1, -1, -1):
        above += classes[i]
        if above >= wanted:
            break
    edge: float = from_bits(np.uint64(i << 15))
    return edge
