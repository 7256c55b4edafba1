"""The sum of an array's squares, exact: the same bits however the array is cut and in whatever order parts are added.

A square, rounded to float64 (one of a float32 needs no rounding), is a whole number of units of 2**-1074, the smallest
float64. Such numbers are added as whole numbers, in `LIMBS` digits of base 2**32: the first `LIMBS - 1` of them count
from the lowest on, the last one is 0, or infinite or NaN where a square is. Digits are whole numbers in float64, so
that ranks can add the digits of their parts by any sum, in any order, without rounding: up to 2**21 of them.
Only the end, `rounded`, rounds: once, to the nearest.
"""

import math

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import kernel, part

LIMBS = 69
"""68 digits of 32 bits: the 2098 of the largest float64, and room for 2**78 of them. One says what is not finite."""
Limbs = NDArray[np.float64]
_UNIT = 1 << 1074
_BLOCK32, _BLOCK64 = 1 << 15, 1 << 10
_FOLD = 51
"""Bits that are taken off all squares of a block at once: `_BLOCK64` such numbers with a sign fit in 63 bits."""


@by_device
def squares(values: NDArray[np.floating]) -> Limbs:
    """The exact sum of squares.

    Args:
        values: 1-D, float32 or float64, NumPy's or CuPy's. With CuPy's it waits for the device.

    Returns:
        The digits, each less than 2**32; the same bits on the host and on a GPU.
    """
    sums = np.zeros(LIMBS + 1, np.int64)
    if values.dtype == np.float32:
        _add_float32(values, values.view(np.int32), np.zeros((4, 256), np.int64), sums)
    else:
        block, moved = np.empty(_BLOCK64), np.empty(_BLOCK64)
        _add_float64(values, block, block.view(np.int64), moved, moved.view(np.int64), sums)
    return digits(sums[: LIMBS - 1], int(sums[LIMBS]))


def digits(sums: NDArray[np.integer], special: int) -> Limbs:
    """The digits of sums that may be larger than a digit.

    Args:
        sums: `LIMBS - 1` whole numbers, carried already.
        special: 1 where a square is infinite, 2 where one is NaN, 3 for both, else 0.
    """
    limbs = np.zeros(LIMBS, np.float64)
    limbs[:-1] = sums
    if special:
        limbs[-1] = math.inf if special == 1 else math.nan
    return limbs


def rounded(limbs: Limbs) -> float:
    """The number that digits stand for, to the nearest float64. They may be sums of digits."""
    if limbs[-1] != 0:
        return float(limbs[-1])
    total: int = sum(int(limbs[k]) << 32 * k for k in limbs.nonzero()[0].tolist())
    try:
        nearest: float = total / _UNIT  # Python rounds a quotient of whole numbers correctly
    except OverflowError:
        return math.inf
    return nearest


def sum_of_squares(values: Array) -> float:
    """The exact sum of squares to the nearest float64: what `math.fsum` gives of them. Else as `squares`."""
    return rounded(squares(values))


@kernel
def _add_float32(values: np.ndarray, bits: np.ndarray, bins: np.ndarray, sums: np.ndarray) -> None:
    """Squares of mantissas by exponent: 2**15 of 48 bits fit. Four sets, so that no addition waits for the one before.

    Args:
        values: only their bits are read, where they are finite.
        bits: the same memory.
        bins: four sets of 256 zeros; zeros at the end.
        sums: added to; see `_carry`.
    """
    n = values.size
    for start in range(0, n, _BLOCK32):
        stop = min(start + _BLOCK32, n)
        i = start
        while i + 4 <= stop:
            for k in range(4):
                exponent = (bits[i + k] >> 23) & 255
                mantissa = np.int64((bits[i + k] & 0x7FFFFF) | ((exponent != 0) << 23))
                bins[k, exponent] += mantissa * mantissa
            i += 4
        while i < stop:
            exponent = (bits[i] >> 23) & 255
            mantissa = np.int64((bits[i] & 0x7FFFFF) | ((exponent != 0) << 23))
            bins[0, exponent] += mantissa * mantissa
            i += 1
        for exponent in range(256):
            total = bins[0, exponent] + bins[1, exponent] + bins[2, exponent] + bins[3, exponent]
            if total:
                bins[:, exponent] = 0
                if exponent == 255:
                    _note(values[start:stop], sums)
                else:  # (mantissa 2**(exponent - 150))**2
                    _place(total, 1074 - 300 + 2 * max(exponent, 1), sums)
        _carry(sums)


@kernel
def _add_float64(
    values: np.ndarray, block: np.ndarray, bits: np.ndarray, moved: np.ndarray, moved_bits: np.ndarray, sums: np.ndarray
) -> None:
    """Of a block of squares the highest bits are added as whole numbers, then the next ones, until nothing is left.

    A number to which 1.5 * 2**(52 + place) is added and from which it is taken again is a multiple of 2**place; in
    between its bits are that whole number. What is left is exact. Each loop is a function, else it does not become
    vector instructions.

    Args:
        values: of any size.
        block: room for squares.
        bits: the same memory.
        moved: room for as many.
        moved_bits: the same memory.
        sums: added to; see `_carry`.
    """
    for start in range(0, values.size, _BLOCK64):
        count = min(_BLOCK64, values.size - start)
        left, left_bits, high, high_bits = block[:count], bits[:count], moved[:count], moved_bits[:count]
        _square(values[start : start + count], left)
        most = _largest(left_bits)
        place = (most >> 52) - 1023 - _FOLD + 1
        if place + 53 > 1022:  # too large to add to; or not finite
            _add_each(left_bits, sums)
            most = 0
        while most and place + 52 >= -1022:
            constant_bits = ((place + 52 + 1023) << 52) | (1 << 51)
            constant = np.int64(constant_bits).view(np.float64)
            _move(left, high, constant)
            _place(_total(high_bits, constant_bits), place + 1074, sums)
            _keep_rest(left, high, constant)
            most = _any(left_bits)
            place -= _FOLD
        if most:
            _add_each(left_bits, sums)
        _carry(sums)


@part
def _square(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(values.size):
        out[i] = values[i] * values[i]


@part
def _largest(bits: np.ndarray) -> int:
    """Of numbers that are not negative, as bits."""
    most: int = 0
    for i in range(bits.size):
        most = max(most, bits[i])
    return most


@part
def _move(block: np.ndarray, moved: np.ndarray, constant: float) -> None:
    for i in range(block.size):
        moved[i] = block[i] + constant


@part
def _total(moved_bits: np.ndarray, constant_bits: int) -> int:
    total: int = 0
    for i in range(moved_bits.size):
        total += moved_bits[i] - constant_bits
    return total


@part
def _keep_rest(block: np.ndarray, moved: np.ndarray, constant: float) -> None:
    for i in range(block.size):
        block[i] -= moved[i] - constant


@part
def _any(bits: np.ndarray) -> int:
    """Whether any number is not 0."""
    found: int = 0
    for i in range(bits.size):
        found |= bits[i] << 1
    return found


@part
def _add_each(bits: np.ndarray, sums: np.ndarray) -> None:
    """Numbers one by one; what is not finite is noted."""
    for i in range(bits.size):
        exponent = (bits[i] >> 52) & 2047
        mantissa = (bits[i] & 0xFFFFFFFFFFFFF) | (np.int64(exponent != 0) << 52)
        if exponent == 2047:
            sums[-1] |= 1 if mantissa == 1 << 52 else 2
        else:  # mantissa 2**(exponent - 1075)
            _place(-mantissa if bits[i] < 0 else mantissa, max(exponent, 1) - 1, sums)


@part
def _place(total: int, position: int, sums: np.ndarray) -> None:
    """Adds `total * 2**position`; the total may be negative."""
    limb, shift = position >> 5, position & 31
    low, high = (total & 0xFFFFFFFF) << shift, (total >> 32) << shift
    sums[limb] += low & 0xFFFFFFFF
    sums[limb + 1] += (low >> 32) + (high & 0xFFFFFFFF)
    sums[limb + 2] += high >> 32


@part
def _carry(sums: np.ndarray) -> None:
    """Makes digits of all but the last two sums, which say what is not finite."""
    for k in range(sums.size - 3):
        sums[k + 1] += sums[k] >> 32
        sums[k] &= 0xFFFFFFFF


@part
def _note(values: np.ndarray, sums: np.ndarray) -> None:
    for x in values:
        square = np.float64(x) * np.float64(x)
        if np.isnan(square):
            sums[-1] |= 2
        elif square == np.inf:
            sums[-1] |= 1
