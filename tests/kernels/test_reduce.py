"""Elementwise reductions of every dtype, in every arrangement of memory that algorithms use, against NumPy."""

import ctypes

import numpy as np
import pytest

from psgd.kernels import reduce

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS, COMPLEX = ("float32", "float64"), ("complex64", "complex128")
OPS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
CASES = [
    (dtype, op)
    for dtype in (*FLOATS, *INTEGERS, *COMPLEX)
    for op in OPS
    if dtype not in COMPLEX or op in ("SUM", "PROD")
]
LENGTHS = (0, 1, 2, 7, 63, 64, 65, 1023)
GUARD = 5


def operand(seed, n, dtype):
    """All bit patterns of integers come up, so that sums wrap around; floats are integers, so that NumPy is exact."""
    rng = np.random.default_rng([seed, n])
    if dtype in INTEGERS:
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, n, dtype, endpoint=True)
    x = rng.permutation(4 * n)[:n] - 2.0 * n
    return (x + 1j * rng.permutation(4 * n)[:n] if dtype in COMPLEX else x).astype(dtype)


def guarded(values):
    whole = np.full((values.size + 2 * GUARD) * values.itemsize, 0xA5, np.uint8).view(values.dtype)
    inner = whole[GUARD : GUARD + values.size]
    inner[:] = values
    return whole, inner


def intact(whole):
    outside = np.concatenate([whole[:GUARD], whole[-GUARD:]])
    return (outside.view(np.uint8) == 0xA5).all()


def wanted(op, a, b):
    with np.errstate(all="ignore"):
        return OPS[op](a, b)


def combine(op, out, a, b):
    reduce.combine(getattr(reduce, op), out, a, b)


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_apart_onto_the_left_and_onto_the_right(dtype, op):
    for n in LENGTHS:
        a, b = operand(1, n, dtype), operand(2, n, dtype)
        right = wanted(op, a, b)
        whole, out = guarded(operand(3, n, dtype))
        before = a.copy(), b.copy()
        combine(op, out, a, b)
        assert np.array_equal(out, right) and intact(whole), n
        assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])
        for side in (0, 1):
            whole, out = guarded((a, b)[side])
            combine(op, out, *((out, b) if side == 0 else (a, out)))
            assert np.array_equal(out, right) and intact(whole), (n, side)
            assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("where", ["apart", "left", "right"])
def test_nan_on_either_side_is_the_result(dtype, op, where):
    for n in (1, 7, 64, 130):
        a, b = operand(1, n, dtype), operand(2, n, dtype)
        a[::3], b[1::3] = np.nan, np.nan
        right = wanted(op, a, b)
        out = {"apart": np.zeros(n, dtype), "left": a.copy(), "right": b.copy()}[where]
        combine(op, out, out if where == "left" else a, out if where == "right" else b)
        assert np.array_equal(out, right, equal_nan=True)
        assert np.isnan(out).sum() == len(range(0, n, 3)) + len(range(1, n, 3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_and_largest_numbers(dtype):
    big, inf = np.finfo(dtype).max, np.inf
    a, b = np.array([[x, y] for x in (big, -big, inf, -inf, 0) for y in (big, -big, inf, -inf, 0)], dtype).T.copy()
    for op in OPS:
        out = np.zeros_like(a)
        combine(op, out, a, b)
        assert np.array_equal(out, wanted(op, a, b), equal_nan=True), op


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_is_reordered_or_fused(dtype):
    """Random numbers: the same bits as NumPy's one rounding for each operation."""
    rng = np.random.default_rng(5)
    a, b, c, d = (rng.normal(size=1000).astype(dtype) for _ in range(4))
    for op, function in OPS.items():
        out = np.empty_like(a)
        combine(op, out, a, b)
        assert out.tobytes() == function(a, b).tobytes(), op
    out = np.empty_like(a)
    reduce.add_all(out, addresses(a, b, c, d, a, c), a.dtype.type)
    assert out.tobytes() == (((((a + b) + c) + d) + a) + c).tobytes()


def addresses(*arrays):
    return np.array([each.ctypes.data for each in arrays], np.int64)


def left_to_right(arrays):
    """Their sum in this order, each addition rounded or wrapped around."""
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for each in arrays[1:]:
            total = total + each
    return total


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *COMPLEX])
def test_several_at_once(dtype):
    """Two to eleven arrays: every number left over after groups of four."""
    for count in range(2, 12):
        for n in (0, 1, 65) if count % 4 else LENGTHS:
            given = [operand(k, n, dtype) for k in range(count)]
            before = [each.copy() for each in given]
            whole, out = guarded(operand(99, n, dtype))
            reduce.add_all(out, addresses(*given), out.dtype.type)
            assert out.tobytes() == left_to_right(given).tobytes() and intact(whole), (count, n)
            assert all(np.array_equal(a, b) for a, b in zip(given, before, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_several_at_once_round_in_order(dtype):
    rng = np.random.default_rng(6)
    for count in range(2, 12):
        given = [rng.normal(size=500).astype(dtype) * 10.0 ** rng.integers(-3, 4) for _ in range(count)]
        given = [each.astype(dtype) for each in given]
        out = np.empty(500, dtype)
        reduce.add_all(out, addresses(*given), out.dtype.type)
        assert out.tobytes() == left_to_right(given).tobytes(), count


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 4096])
def test_division_rounds_once(dtype, divisor):
    for n in LENGTHS:
        x = operand(1, n, dtype)
        whole, out = guarded(x)
        reduce.divide(out, divisor)
        assert out.tobytes() == (x / x.dtype.type(divisor)).tobytes() and intact(whole)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_division_of_complex_numbers(dtype):
    x = operand(1, 200, dtype)
    out = x.copy()
    reduce.divide(out, 3)
    part = x.real.dtype
    parts = (x.view(part).astype(np.float64) / 3).astype(part)
    assert (abs(out.view(part) - parts) <= np.spacing(abs(parts))).all()
    with np.errstate(all="ignore"):
        special = np.array([complex(np.inf, 1), complex(1, -np.inf), complex(np.finfo(part).max, 3)], dtype)
    reduce.divide(special, 3)
    assert np.isinf(special.real[0]) and np.isinf(special.imag[1])
    assert np.isfinite(special.real[2]) and special.real[2] > 0


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *COMPLEX])
def test_the_callback_of_a_dtype_does_the_same(dtype):
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(reduce.arithmetic(np.dtype(dtype)))
    assert reduce.arithmetic(np.dtype(dtype)) == reduce.arithmetic(np.dtype(dtype))
    for n in (0, 1, 65):
        a, b, c, d = (operand(k, n, dtype) for k in range(4))
        at = [x.ctypes.data for x in (a, b, c, d)]
        for op in OPS if dtype not in COMPLEX else ("SUM", "PROD"):
            whole, out = guarded(d)
            call(reduce.COMBINE, getattr(reduce, op), out.ctypes.data, at[0], at[1], 0, n)
            assert np.array_equal(out, wanted(op, a, b)) and intact(whole), (op, n)
            whole, out = guarded(a)
            call(reduce.COMBINE, getattr(reduce, op), out.ctypes.data, out.ctypes.data, at[1], 0, n)
            assert np.array_equal(out, wanted(op, a, b)) and intact(whole), (op, n)
        for given in ((a, b), (a, b, c, d), (a, b, c, d, a, c, b)):
            whole, out = guarded(d)
            table = addresses(*given)
            call(reduce.ADD_ALL, len(given), out.ctypes.data, table.ctypes.data, 0, 0, n)
            assert np.array_equal(out, left_to_right(given)) and intact(whole)
        if dtype in FLOATS:
            whole, out = guarded(a)
            call(reduce.DIVIDE, 3, out.ctypes.data, 0, 0, 0, n)
            assert out.tobytes() == (a / a.dtype.type(3)).tobytes() and intact(whole)
