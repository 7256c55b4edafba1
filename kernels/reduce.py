"""Elementwise combination of arrays: what a reduction does at each step.

MIN and MAX give NaN where an operand is NaN, as NumPy's minimum and maximum do. Integers wrap around.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from psgd.kernels.jit import kernel

SUM, PROD, MIN, MAX = range(4)


def _less(x: Any, y: Any) -> bool:
    return bool(x < y)


@overload(_less, inline="always", strict=False)
def _less_overload(x: Any, y: Any) -> Any:
    if isinstance(x, types.Complex):  # not ordered, and refused before it gets here
        return lambda x, y: False
    return lambda x, y: x < y


@kernel
def combine(op: int, out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """`out = a op b`, elementwise.

    Args:
        op: SUM, PROD, MIN or MAX.
        out: written; may be `a` or `b`, otherwise overlaps neither.
        a: left operand, of the same length and dtype.
        b: right operand.
    """
    # A loop over two arrays that are one would not be vectorized: the test for overlap at its start finds one.
    if out.ctypes.data == a.ctypes.data:
        _onto(op, out, b)
    elif out.ctypes.data == b.ctypes.data:
        _under(op, out, a)
    else:
        _apart(op, out, a, b)


@kernel
def _apart(op: int, out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    if op == SUM:
        for i in range(out.size):
            out[i] = a[i] + b[i]
    elif op == PROD:
        for i in range(out.size):
            out[i] = a[i] * b[i]
    elif op == MIN:
        for i in range(out.size):
            x, y = a[i], b[i]
            out[i] = x if _less(x, y) or x != x else y  # noqa: PLR0124 -- true for NaN alone
    else:
        for i in range(out.size):
            x, y = a[i], b[i]
            out[i] = x if _less(y, x) or x != x else y  # noqa: PLR0124


@kernel
def _onto(op: int, out: np.ndarray, b: np.ndarray) -> None:
    if op == SUM:
        for i in range(out.size):
            out[i] = out[i] + b[i]
    elif op == PROD:
        for i in range(out.size):
            out[i] = out[i] * b[i]
    elif op == MIN:
        for i in range(out.size):
            x, y = out[i], b[i]
            out[i] = x if _less(x, y) or x != x else y  # noqa: PLR0124
    else:
        for i in range(out.size):
            x, y = out[i], b[i]
            out[i] = x if _less(y, x) or x != x else y  # noqa: PLR0124


@kernel
def _under(op: int, out: np.ndarray, a: np.ndarray) -> None:
    if op == SUM:
        for i in range(out.size):
            out[i] = a[i] + out[i]
    elif op == PROD:
        for i in range(out.size):
            out[i] = a[i] * out[i]
    elif op == MIN:
        for i in range(out.size):
            x, y = a[i], out[i]
            out[i] = x if _less(x, y) or x != x else y  # noqa: PLR0124
    else:
        for i in range(out.size):
            x, y = a[i], out[i]
            out[i] = x if _less(y, x) or x != x else y  # noqa: PLR0124


@kernel
def add_three(out: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> None:
    """`out = ((out + b) + c) + d`: one pass over `out` for three operands, which are read side by side."""
    for i in range(out.size):
        out[i] = ((out[i] + b[i]) + c[i]) + d[i]


@kernel
def divide(out: np.ndarray, divisor: int) -> None:
    """`out = out / divisor`, elementwise, in the dtype of `out`."""
    divisor_ = out.dtype.type(divisor)
    for i in range(out.size):
        out[i] = out[i] / divisor_
