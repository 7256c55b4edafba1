"""Weighted sums in GPU memory: `psgd.kernels.accumulate`, bit for bit."""

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import Elementwise

_WEIGH = Elementwise("weigh", "out result, in values", "weight", "result = weight * values")
_ADD_WEIGHTED = Elementwise("add_weighted", "inout sum, in values", "weight", "sum += weight * values")
_ADD_FLOAT16 = Elementwise(
    "add_float16",
    "inout sum, in ushort values",
    "",
    'float wide; asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(values)); sum += wide',
)
_ADD_BFLOAT16 = Elementwise(
    "add_bfloat16", "inout sum, in ushort values", "", "sum += __uint_as_float((unsigned)values << 16)"
)


def weigh(out: Array, values: Array, weight: float) -> None:
    _WEIGH((out, values), (weight,))


def add_weighted(out: Array, values: Array, weight: float) -> None:
    _ADD_WEIGHTED((out, values), (weight,))


def add_narrow(out: Array, values: Array, kind: str) -> None:
    """`out += values`, widened on the way.

    Args:
        out: float32.
        values: their bits as uint16 (or float16 itself), as long.
        kind: "float16" or "bfloat16".
    """
    (_ADD_FLOAT16 if kind == "float16" else _ADD_BFLOAT16)((out, values))
