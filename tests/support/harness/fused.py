"""`a * b + c` rounded once, in NumPy alone: for simulations that must have the bits of compiled update rules."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
_SPLIT = 2.0**27 + 1.0  # Veltkamp's: halves of 26 bits


def multiply_add(a: Any, b: Any, c: Any) -> Floats:
    """The nearest float to `a * b + c`, of the dtype that `b` and `c` have; `a` may be a number."""
    kind = np.result_type(b, c).type
    a, b, c = np.broadcast_arrays(*(np.asarray(kind(each) if np.ndim(each) == 0 else each, kind) for each in (a, b, c)))
    with np.errstate(all="ignore"):
        plain = a * b + c
        if kind is np.float32:  # a product has 48 bits: exact in float64
            result = _to_odd(a.astype(np.float64) * b, c.astype(np.float64)).astype(np.float32)
        else:  # Boldo and Melquiond 2008, "Emulation of a FMA and correctly rounded sums: proved algorithms"
            high, low = _two_product(a, b)
            sum_, rest = _two_sum(c, low)
            top, more = _two_sum(high, sum_)
            result = top + _to_odd(rest, more)
    return np.where(np.isfinite(plain) & np.isfinite(result), result, plain)


def _two_sum(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The sum, and what its rounding took away (Knuth)."""
    total = x + y
    other = total - x
    return total, (x - (total - other)) + (y - other)


def _two_product(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The product, and what its rounding took away (Dekker)."""
    product = x * y
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return product, x2 * y2 - (((product - x1 * y1) - x2 * y1) - x1 * y2)


def _halves(x: Floats) -> tuple[Floats, Floats]:
    scaled = _SPLIT * x
    high = scaled - (scaled - x)
    return high, x - high


def _to_odd(x: Floats, y: Floats) -> Floats:
    """`x + y` in float64, rounded to the neighbour whose last bit is 1: a second rounding then makes no difference."""
    total, rest = _two_sum(x, y)
    even = (np.ascontiguousarray(total).view(np.uint64) & np.uint64(1)) == 0
    return np.where((rest != 0) & even.reshape(total.shape), np.nextafter(total, np.copysign(np.inf, rest)), total)
