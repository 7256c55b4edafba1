"""The host's loops around the exponential function, eight and more values at a time. Importing this loads Numba.

The C library's function takes one value at a time, several times as long.
"""

from typing import Any

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.jit import intrinsic, kernel, part

SLOPE, CUBE = 2 * (2 / np.pi) ** 0.5, 0.044715
"""x (1 + tanh(SLOPE / 2 (x + CUBE x^3))) / 2 = x / (1 + exp(-SLOPE (x + CUBE x^3)))."""

_LEAST, _MOST = -87.0, 88.0
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


@intrinsic
def exp(typing_context: Any, x: Any) -> Any:
    """The exponential of a float, in instructions that compilers vectorize for float32: to 2 units in the last place.

    There, what is below exp(-87) is that, and what is above exp(88) is that; NaN stays. The method is Cephes': x minus
    a multiple of ln 2, of which a polynomial; the multiple goes into the exponent's bits.
    """
    from llvmlite import ir

    def function(builder: Any, name: str, value: Any) -> Any:
        declared = builder.module.declare_intrinsic(f"llvm.{name}", [value.type])
        return builder.call(declared, [value])

    def exact(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return function(builder, "exp", args[0])

    def fast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        kind, whole = value.type, ir.IntType(32)

        def number(of: float) -> Any:
            return ir.Constant(kind, of)

        for compare, limit in (("<", _LEAST), (">", _MOST)):
            value = builder.select(builder.fcmp_ordered(compare, value, number(limit)), number(limit), value)
        times = function(builder, "rint", builder.fmul(value, number(1.4426950408889634)))
        rest = builder.fma(times, number(-_LN2_HIGH), value)
        rest = builder.fma(times, number(-_LN2_LOW), rest)
        sum_ = number(_TERMS[0])
        for term in _TERMS[1:]:
            sum_ = builder.fma(sum_, rest, number(term))
        power = builder.fma(sum_, builder.fmul(rest, rest), builder.fadd(rest, number(1)))
        exponent = builder.add(builder.fptosi(times, whole), ir.Constant(whole, 127))
        factor = builder.bitcast(builder.shl(exponent, ir.Constant(whole, 23)), kind)
        return builder.fmul(power, factor)

    return x(x), fast if x.bitwidth == 32 else exact


@kernel
def gelu(x: Array, y: Array) -> None:
    """Writes x / (1 + exp(-SLOPE (x + CUBE x^3))) to y, both flat and of one dtype."""
    kind = x.dtype.type
    one, slope, cube = kind(1), kind(-SLOPE), kind(CUBE)
    for i in range(x.size):
        v = x[i]
        y[i] = v / (one + exp(slope * (v + cube * v * v * v)))


@kernel
def gelu_backward(x: Array, dy: Array) -> None:
    """Multiplies dy by the slope of `gelu` at x, in place; both flat and of one dtype."""
    kind = x.dtype.type
    one, slope, cube = kind(1), kind(-SLOPE), kind(CUBE)
    steep = kind(3 * CUBE)
    for i in range(x.size):
        v = x[i]
        share = one / (one + exp(slope * (v + cube * v * v * v)))
        dy[i] *= share * (one - v * (one - share) * (slope * (one + steep * v * v)))


@part
def _largest(row: Any, n: int) -> Any:
    """The largest of n values, in four parts; any of them where one is NaN."""
    a = b = c = d = row[0]
    whole = n - n % 4
    for j in range(0, whole, 4):
        a = max(a, row[j])
        b = max(b, row[j + 1])
        c = max(c, row[j + 2])
        d = max(d, row[j + 3])
    for j in range(whole, n):
        a = max(a, row[j])
    return max(a, b, c, d)


@part
def _sum(row: Any, n: int) -> Any:
    """The sum of n values, in eight parts."""
    a = b = c = d = e = f = g = h = row.dtype.type(0)
    whole = n - n % 8
    for j in range(0, whole, 8):
        a += row[j]
        b += row[j + 1]
        c += row[j + 2]
        d += row[j + 3]
        e += row[j + 4]
        f += row[j + 5]
        g += row[j + 6]
        h += row[j + 7]
    for j in range(whole, n):
        a += row[j]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@kernel
def causal_softmax(scores: Array, scale: float, block: int) -> None:
    """Turns each square matrix of scores, (m, tokens, tokens), into shares: row i is softmax over 0..i, then 0.

    The zeros end with the block of so many columns that i is in: what is beyond is neither read nor written.
    """
    kind = scores.dtype.type
    by = kind(scale)
    for matrix in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            row = scores[matrix, i]
            top = _largest(row, i + 1)
            for j in range(i + 1):
                row[j] = exp((row[j] - top) * by)
            factor = kind(1) / _sum(row, i + 1)
            for j in range(i + 1):
                row[j] *= factor
            row[i + 1 : (i // block + 1) * block] = kind(0)


@kernel
def causal_softmax_backward(shares: Array, slopes: Array, scale: float, block: int) -> None:
    """Turns the gradient for shares, (m, tokens, tokens), into that for scores in place; elsewhere as above."""
    kind = shares.dtype.type
    by = kind(scale)
    for matrix in range(shares.shape[0]):
        for i in range(shares.shape[1]):
            share, slope = shares[matrix, i], slopes[matrix, i]
            n = i + 1
            a = b = c = d = kind(0)
            whole = n - n % 4
            for j in range(0, whole, 4):
                a += share[j] * slope[j]
                b += share[j + 1] * slope[j + 1]
                c += share[j + 2] * slope[j + 2]
                d += share[j + 3] * slope[j + 3]
            for j in range(whole, n):
                a += share[j] * slope[j]
            mean = (a + b) + (c + d)
            for j in range(n):
                slope[j] = share[j] * (slope[j] - mean) * by
            slope[n : (i // block + 1) * block] = kind(0)
