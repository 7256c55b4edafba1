"""Whether a vector holds numbers only: one pass, as fast as memory is read."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import kernel


@by_device
def all_finite(values: Array) -> bool:
    """Whether no element of a vector, on the host or on a GPU, is NaN or infinite. Waits for a GPU; takes no memory."""
    return bool(finite(values))


@kernel
def finite(values: np.ndarray) -> bool:
    """Whether no element is NaN or infinite."""
    wrong, limit = False, values.dtype.type(np.inf)
    for i in range(values.size):  # without a way out, so that several elements are compared at once
        wrong |= not abs(values[i]) < limit
    return not wrong


BLOCK = 1024
"""Elements of a block of `part_finite`: a page of memory of float32."""


@kernel
def part_finite(values: np.ndarray, turn: int, parts: int) -> bool:
    """The same of every `parts`-th block; `turn` chooses which, so that as many calls in turn see all elements."""
    wrong, limit = False, values.dtype.type(np.inf)
    for start in range((turn % parts) * BLOCK, values.size, parts * BLOCK):
        block = values[start : start + BLOCK]
        for i in range(block.size):
            wrong |= not abs(block[i]) < limit
    return not wrong
