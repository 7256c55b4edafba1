"""A formula over several arrays has the bits of NumPy's separate operations."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def made():
    from psgd.kernels.device.elementwise import Elementwise

    return Elementwise("test_formula", "inout a, in b, out c, in ushort bits", "s", "c = a; a = s * b + a + (T)bits")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "shift"), [(1, 0), (4096, 0), (4099, 0), (1003, 1)])
def test_whole_packs_and_the_rest(dtype, n, shift):
    xp = cupy()
    rng = np.random.default_rng(n)
    a, b = (rng.normal(size=n + shift).astype(dtype)[shift:] for _ in range(2))
    bits = rng.integers(0, 1 << 16, n).astype(np.uint16)
    x, y = (xp.empty(n + shift, dtype)[shift:] for _ in range(2))
    x[:], y[:] = xp.asarray(a), xp.asarray(b)
    out = xp.full(n, np.nan, dtype)
    made()((x, y, out, xp.asarray(bits)), (0.3,))
    s = np.dtype(dtype).type(0.3)
    np.testing.assert_array_equal(x.get(), s * b + a + bits.astype(dtype))
    np.testing.assert_array_equal(out.get(), a)
    np.testing.assert_array_equal(y.get(), b)


def test_nothing_is_only_compiled():
    xp = cupy()
    none = xp.empty(0, np.float32)
    made()((none, none, none, xp.empty(0, np.uint16)), (1.0,))
