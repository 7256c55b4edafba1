"""16-bit floats: every bit pattern widened, and rounding at, below and above every tie, against float64."""

import sys

import numpy as np
import pytest

from psgd.kernels import half

PATTERNS = np.arange(65536, dtype=np.uint16)
# Exponent bits and fraction bits of each kind.
FORMATS = {"float16": (5, 10), "bfloat16": (8, 7)}
KINDS = pytest.mark.parametrize("kind", FORMATS)


def value(bits, kind):
    """What 16 bits mean, by the definition, in float64."""
    exponents, fractions = FORMATS[kind]
    bias = 2 ** (exponents - 1) - 1
    field = (bits.astype(np.int64) >> fractions) & (2**exponents - 1)
    fraction = (bits.astype(np.int64) & (2**fractions - 1)).astype(np.float64)
    normal = np.ldexp(2.0**fractions + fraction, field - bias - fractions)
    result = np.where(field == 0, np.ldexp(fraction, 1 - bias - fractions), normal)
    result = np.where(field == 2**exponents - 1, np.where(fraction == 0, np.inf, np.nan), result)
    return np.where(bits >> 15, -result, result)


def rounded(x, kind):
    """The nearest value of a kind, ties to the even fraction, for float32 values."""
    exponents, fractions = FORMATS[kind]
    bias = 2 ** (exponents - 1) - 1
    wide = x.astype(np.float64)
    magnitude = np.abs(np.where(np.isfinite(wide), wide, 0))
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, 1 - bias)  # below: subnormal numbers, all of one spacing
    spacing = np.ldexp(1.0, exponent - fractions)
    near = np.rint(magnitude / spacing) * spacing  # both exact: spacing is a power of two
    near = np.where(near >= 2.0 ** (bias + 1), np.inf, near)
    return np.copysign(np.where(np.isfinite(wide), near, np.abs(wide)), wide)


def dtype_of(kind):
    return np.dtype(np.float16 if kind == "float16" else np.uint16)


def narrowed(values, kind):
    out = np.full(values.size + 2, 0x1234, np.uint16).view(dtype_of(kind))
    before = values.tobytes()
    half.narrow(out[1:-1], values, kind)
    assert values.tobytes() == before
    assert out.view(np.uint16)[0] == out.view(np.uint16)[-1] == 0x1234
    return out[1:-1].view(np.uint16)


def same(a, b):
    """Equal values and signs, or both NaN."""
    return (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))


@KINDS
def test_every_pattern_is_widened_exactly(kind):
    given = PATTERNS.view(dtype_of(kind))
    wide = half.widen(given, kind)
    assert wide.dtype == np.float32 and not np.shares_memory(wide, given)
    with np.errstate(invalid="ignore"):  # signalling NaN are among them
        assert same(wide.astype(np.float64), value(PATTERNS, kind)).all()


@KINDS
def test_every_pattern_comes_back(kind):
    back = narrowed(half.widen(PATTERNS.view(dtype_of(kind)), kind), kind)
    nan = np.isnan(value(PATTERNS, kind))
    assert np.array_equal(back[~nan], PATTERNS[~nan])
    assert np.isnan(value(back[nan], kind)).all()
    assert np.array_equal(back[nan] >> 15, PATTERNS[nan] >> 15)


def near_every_tie(kind):
    """float32 values at every number of the kind, at every middle of two neighbours, and one step beside each."""
    numbers = value(PATTERNS[PATTERNS < 0x8000], kind)
    numbers = numbers[np.isfinite(numbers)]
    above = np.append(numbers[1:], 2 * numbers[-1] - numbers[-2])  # the first that is too large
    points = np.concatenate([numbers, (numbers + above) / 2]).astype(np.float32)
    down, up = np.nextafter(points, np.float32(-np.inf)), np.nextafter(points, np.float32(np.inf))
    x = np.concatenate([points, down, up, [np.float32(np.inf), np.finfo(np.float32).max, np.float32(1e-45)]])
    return np.concatenate([x, -x]).astype(np.float32)


@KINDS
def test_rounds_to_nearest_and_ties_to_even(kind):
    x = near_every_tie(kind)
    assert x.size > 180_000
    assert same(value(narrowed(x, kind), kind), rounded(x, kind)).all()


@KINDS
def test_nan_stays_nan_even_where_its_payload_is_in_the_lower_half(kind):
    x = np.array([0x7F800001, 0x7F80FFFF, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(value(narrowed(x, kind), kind)).all()


@KINDS
@pytest.mark.parametrize("n", [0, 1, 63, 65])
def test_lengths(kind, n):
    x = (np.arange(n) + 1).astype(np.float32)
    assert np.array_equal(value(narrowed(x, kind), kind), x)
    assert half.widen(np.zeros(n, dtype_of(kind)), kind).shape == (n,)


@KINDS
def test_a_program_that_raises_on_floating_point_events_is_not_disturbed(kind):
    """Overflow to infinity and underflow to subnormal numbers are what 16 bits mean, whatever np.seterr says."""
    x = np.array([1e38, 6e-8, 1e-30, np.nan, np.inf], np.float32)
    with np.errstate(all="raise"):
        out = narrowed(x, kind)
        half.widen(np.array([0x7D01, 0x7F81, 1], np.uint16).view(dtype_of(kind)), kind)
    assert same(value(out, kind), rounded(x, kind)).all()


def test_bfloat16_like_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = near_every_tie("bfloat16")
    with np.errstate(all="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(narrowed(x, "bfloat16"), wanted)
    wide = PATTERNS.view(ml_dtypes.bfloat16).astype(np.float32)
    assert same(half.widen(PATTERNS, "bfloat16"), wide).all()


def test_bfloat16_like_pytorch():
    torch = sys.modules.get("torch") or pytest.importorskip("torch")
    x = near_every_tie("bfloat16")
    wanted = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(narrowed(x, "bfloat16"), wanted)
