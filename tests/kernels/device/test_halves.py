"""16-bit floats on a GPU have the bits of the host's: every pattern there, and what rounds back."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def test_every_bfloat16_is_the_upper_half_of_a_float32():
    xp = cupy()
    from psgd.kernels.device.halves import widen

    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(xp.asarray(bits), "bfloat16").get()
    np.testing.assert_array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)


def test_narrowing_rounds_to_nearest_even_and_keeps_nan():
    xp = cupy()
    from psgd.kernels.device.halves import narrow

    words = np.random.default_rng(2).integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32)
    words[:4] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001  # two ties, what becomes infinite, a NaN
    out = xp.empty(words.size, np.uint16)
    narrow(out, xp.asarray(words.view(np.float32)), "bfloat16")
    nan = (words & 0x7FFFFFFF) > 0x7F800000
    even = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(out.get(), np.where(nan, (words >> 16 | 64).astype(np.uint16), even))


def test_float16_is_numpys():
    xp = cupy()
    from psgd.kernels.device.halves import narrow, widen

    values = np.linspace(-70000, 70000, 4001).astype(np.float32)
    out = xp.empty(values.size, np.float16)
    narrow(out, xp.asarray(values), "float16")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out.get(), values.astype(np.float16))
    np.testing.assert_array_equal(widen(out, "float16").get(), out.get().astype(np.float32))
