"""16-bit floats on a GPU to float32 and back, with the bits of `psgd.kernels.half`."""

from typing import Any

import cupy
import numpy as np

_WIDEN = cupy.ElementwiseKernel("uint16 bits", "uint32 out", "out = (unsigned int)bits << 16", "psgd_widen_bfloat16")
_NARROW = cupy.ElementwiseKernel(
    "uint32 x",
    "uint16 out",
    """
    if ((x & 0x7FFFFFFFu) > 0x7F800000u) out = (unsigned short)((x >> 16) | 64u);
    else out = (unsigned short)((x + 0x7FFFu + ((x >> 16) & 1u)) >> 16);
    """,
    "psgd_narrow_bfloat16",
)


def widen(values: Any, kind: str) -> Any:
    """A float32 copy of float16 values, or of the bits of bfloat16 values as uint16; on the current stream."""
    if kind == "float16":
        return values.astype(np.float32)
    return _WIDEN(values).view(np.float32)


def narrow(out: Any, values: Any, kind: str) -> None:
    """Writes float32 values to `out` as float16, or as the bits of bfloat16; on the current stream."""
    if kind == "float16":
        out[...] = values
    else:
        _NARROW(values.view(np.uint32), out)
