"""The exact sum of squares: that of `math.fsum`, with the same bits however the vector is cut or ordered."""

import math

import numpy as np
import pytest

from psgd.kernels.exact_squares import LIMBS, rounded, squares, sum_of_squares

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WIDE = {np.float32: (-45, 19), np.float64: (-160, 150)}


def wide(n, dtype, seed=0):
    """Signs and magnitudes over most of what the dtype has; some are 0."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(n) * 10.0 ** rng.uniform(*WIDE[dtype], n)
    values[rng.random(n) < 0.1] = 0
    return values.astype(dtype)


def expected(values):
    return math.fsum((values.astype(np.float64) ** 2).tolist())


@DTYPES
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 2047, 2048, 2049, 4097, 32767, 32769, 100_003])
def test_it_is_the_exact_sum_rounded_once(n, dtype):
    for values in (wide(n, dtype, n), np.random.default_rng(n).standard_normal(n).astype(dtype)):
        assert sum_of_squares(values) == expected(values)


@DTYPES
def test_no_order_and_no_cut_changes_a_bit(dtype):
    values = wide(20_011, dtype)
    whole, total = squares(values), sum_of_squares(values)
    in_order = {float(np.cumsum(values[order].astype(np.float64) ** 2)[-1]) for order in orders(values)}
    assert len(in_order) > 1, "a sum that rounds at each step depends on the order"
    for seed, order in enumerate(orders(values)):
        np.testing.assert_array_equal(squares(values[order]), whole)
        rng = np.random.default_rng(seed)
        for parts in (1, 2, 3, 7, 300):
            edges = np.sort(rng.integers(0, values.size + 1, parts - 1))
            sums = [squares(part) for part in np.split(values[order], edges)]
            rng.shuffle(sums)
            assert rounded(np.sum(sums, axis=0)) == total


def orders(values):
    return [
        np.arange(values.size),
        np.argsort(values),
        *(np.random.default_rng(k).permutation(values.size) for k in (1, 2)),
    ]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        *((x, np.float32) for x in (1e-45, 1.1e-38, 1.2e-38, 3.4e38, -1.0)),
        *((x, np.float64) for x in (2e-162, 1.5e-154, 1.3e152, -0.1)),
    ],
)
def test_the_smallest_and_the_largest(value, dtype):
    for n in (1, 3, 5000):
        values = np.full(n, value, dtype)
        assert sum_of_squares(values) == expected(values) > 0


def test_the_largest_square_among_small_ones():
    values = np.random.default_rng(0).standard_normal(3000) * 1e140
    values[700] = -1.34e154
    assert sum_of_squares(values) == expected(values)


def test_a_square_below_the_smallest_float64_is_0_and_a_sum_above_the_largest_is_infinite():
    assert sum_of_squares(np.full(9, 1e-200)) == 0.0
    assert sum_of_squares(np.full(9, 1e154)) == math.inf


@DTYPES
@pytest.mark.parametrize("at", [0, 5, 40_000])
def test_what_is_not_finite_shows(at, dtype):
    values = np.ones(40_001, dtype)
    values[at] = -np.inf
    assert sum_of_squares(values) == math.inf
    assert rounded(squares(values) + squares(values)) == math.inf
    other = np.ones(7, dtype)
    other[3] = np.nan
    assert math.isnan(sum_of_squares(other))
    assert math.isnan(rounded(squares(values) + squares(other)))
    values[40_000 - at] = np.nan
    assert math.isnan(sum_of_squares(values))


@DTYPES
def test_digits_are_whole_and_leave_room_to_add(dtype):
    limbs = squares(wide(9_001, dtype))
    assert limbs.shape == (LIMBS,)
    assert limbs.dtype == np.float64
    assert (limbs == np.floor(limbs)).all()
    assert limbs.max() < 2**32
    many = np.full(1000, 1.7, dtype)
    assert rounded(squares(many) * 2**20) == sum_of_squares(many) * 2**20
