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
_BLOCK32, _BLOCK64, _BLOCKS64 = 1 << 15, 1 << 11, 1 << 18


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
        block = np.empty(_BLOCK64, np.float64)
        _add_float64(values, block, block.view(np.int64), np.zeros((2, 2048, 2), np.int64), sums)
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
def _add_float64(values: np.ndarray, block: np.ndarray, bits: np.ndarray, bins: np.ndarray, sums: np.ndarray) -> None:
    """As `_add_float32`, of squares rounded to float64: both halves of their mantissas, of which 2**30 fit.

    Args:
        values: as there.
        block: room for squares.
        bits: the same memory.
        bins: two sets of 2048 pairs of zeros; zeros at the end.
        sums: added to; see `_carry`.
    """
    n = values.size
    for start in range(0, n, _BLOCK64):
        count = min(_BLOCK64, n - start)
        for i in range(count):
            block[i] = values[start + i] * values[start + i]
        block[count:] = 0.0
        for i in range(0, count, 2):
            for k in range(2):
                exponent = bits[i + k] >> 52
                mantissa = (bits[i + k] & 0xFFFFFFFFFFFFF) | (np.int64(exponent != 0) << 52)
                bins[k, exponent, 0] += mantissa & 0xFFFFFFFF
                bins[k, exponent, 1] += mantissa >> 32
        if start + count < n and (start // _BLOCK64 + 1) % _BLOCKS64:
            continue
        for exponent in range(2048):
            for half in range(2):
                total = bins[0, exponent, half] + bins[1, exponent, half]
                if total:
                    bins[:, exponent, half] = 0
                    if exponent == 2047:
                        _note(values[: start + count], sums)
                    else:  # mantissa 2**(exponent - 1075)
                        _place(total, 32 * half + max(exponent, 1) - 1, sums)
        _carry(sums)


@part
def _place(total: int, position: int, sums: np.ndarray) -> None:
    """Adds `total * 2**position`."""
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
