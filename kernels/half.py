"""16-bit floats to float32 and back: sums of them are made in float32.

bfloat16 is the upper half of a float32; rounding back is to nearest, ties to even, as hardware does it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.jit import kernel


def widen(values: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """A float32 copy of float16 values, or of the bits of bfloat16 values as uint16."""
    if kind == "float16":
        with np.errstate(all="ignore"):
            return values.astype(np.float32)
    bits = values.astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def narrow(out: NDArray[Any], values: NDArray[np.float32], kind: str) -> None:
    """Writes float32 values to `out` as float16, or as the bits of bfloat16; what is too large becomes infinite."""
    if kind == "float16":
        with np.errstate(all="ignore"):
            out[:] = values
    else:
        _round(out, values.view(np.uint32))


@kernel
def _round(out: np.ndarray, bits: np.ndarray) -> None:
    for i in range(out.size):
        x = bits[i]
        if (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # NaN stays one
            out[i] = np.uint16((x >> np.uint32(16)) | np.uint32(64))
        else:
            odd = (x >> np.uint32(16)) & np.uint32(1)
            out[i] = np.uint16((x + np.uint32(0x7FFF) + odd) >> np.uint32(16))
