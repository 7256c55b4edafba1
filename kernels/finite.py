"""Whether a vector holds numbers only: one pass, as fast as memory is read."""

import numpy as np

from psgd.kernels.jit import kernel


@kernel
def finite(values: np.ndarray) -> bool:
    """Whether no element is NaN or infinite."""
    wrong, limit = False, values.dtype.type(np.inf)
    for i in range(values.size):  # without a way out, so that several elements are compared at once
        wrong |= not abs(values[i]) < limit
    return not wrong
