"""Elementwise combination of arrays: what a reduction does at each step.

MIN and MAX give NaN where an operand is NaN, as NumPy's minimum and maximum do. Integers wrap around.
"""

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import overload

from psgd.kernels.jit import compile_callback, inlined_part, intrinsic, kernel, part
from psgd.kernels.memory import atomic

SUM, PROD, MIN, MAX = range(4)


def _less(x: Any, y: Any) -> bool:
    return bool(x < y)


@overload(_less, inline="always", strict=False)  # type: ignore[untyped-decorator,unused-ignore]
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
    # A loop over two arrays that are one would not be vectorized: the test for overlap at its start finds one. So
    # the loops are put here three times, each with the same name for the same array.
    if out.ctypes.data == a.ctypes.data:
        _calculate(op, out, out, b)
    elif out.ctypes.data == b.ctypes.data:
        _calculate(op, out, a, out)
    else:
        _calculate(op, out, a, b)


@inlined_part
def _calculate(op: int, out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
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


@part
def _add_four(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + c[i]) + d[i]


@part
def _add_four_onto(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> None:
    for i in range(out.size):
        out[i] = (((out[i] + a[i]) + b[i]) + c[i]) + d[i]


@kernel
def add_all(out: np.ndarray, sources: np.ndarray, element: Any) -> None:
    """The sum of several arrays, from left to right, four side by side: each is a stream that processors prefetch.

    Args:
        out: written; overlaps none of them.
        sources: their addresses, at least two, each of as many elements as `out`.
        element: the scalar class of the dtype.
    """
    n, count = out.size, sources.size
    done = 2
    if count >= 4:
        _add_four(
            out,
            carray(atomic.pointer(sources[0], element), n),
            carray(atomic.pointer(sources[1], element), n),
            carray(atomic.pointer(sources[2], element), n),
            carray(atomic.pointer(sources[3], element), n),
        )
        done = 4
    else:
        first, second = carray(atomic.pointer(sources[0], element), n), carray(atomic.pointer(sources[1], element), n)
        for i in range(n):
            out[i] = first[i] + second[i]
    while done + 4 <= count:
        _add_four_onto(
            out,
            carray(atomic.pointer(sources[done], element), n),
            carray(atomic.pointer(sources[done + 1], element), n),
            carray(atomic.pointer(sources[done + 2], element), n),
            carray(atomic.pointer(sources[done + 3], element), n),
        )
        done += 4
    while done < count:
        one = carray(atomic.pointer(sources[done], element), n)
        for i in range(n):
            out[i] = out[i] + one[i]
        done += 1


@kernel
def divide(out: np.ndarray, divisor: int) -> None:
    """`out = out / divisor`, elementwise, in the dtype of `out`."""
    divisor_ = out.dtype.type(divisor)
    for i in range(out.size):
        out[i] = out[i] / divisor_


COMBINE, ADD_ALL, DIVIDE = range(3)
_SIGNATURE = types.void(*(types.int64,) * 7)


@functools.cache
def arithmetic(dtype: "np.dtype[Any]") -> int:
    """The address of compiled arithmetic for one dtype, which code for all dtypes can call.

    It takes seven int64: what to do, then for COMBINE the operation, the addresses of out, a and b, nothing, and the
    number of elements; for ADD_ALL how many arrays, the address of out, that of a table of their addresses, twice
    nothing, and the number; for DIVIDE the divisor, the address of out, three times nothing, and the number. It holds
    no lock of Python.
    """
    element = dtype.type

    def compute(what: int, op: int, out: int, a: int, b: int, c: int, n: int) -> None:
        result = carray(atomic.pointer(out, element), n)
        if what == COMBINE:
            combine(op, result, carray(atomic.pointer(a, element), n), carray(atomic.pointer(b, element), n))
        elif what == ADD_ALL:
            add_all(result, carray(atomic.pointer(a, np.int64), op), element)
        else:
            divide(result, op)

    return int(compile_callback(_SIGNATURE, compute).address)


@intrinsic
def calculate(typing_context: Any, function: Any, what: Any, op: Any, out: Any, a: Any, b: Any, c: Any, n: Any) -> Any:
    """Calls what `arithmetic` gave the address of, from compiled code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 7)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 8), generate
