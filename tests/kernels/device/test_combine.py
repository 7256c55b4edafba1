"""A reduction's step on a GPU has the host's bits."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.reduce import MAX, MIN, PROD, SUM

pytestmark = pytest.mark.gpu
HOST = {SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}
DTYPES = ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(HOST))
@pytest.mark.parametrize("shift", [0, 1])
def test_out_is_a_op_b(dtype, op, shift):
    xp = cupy()
    from psgd.kernels.device import combine

    assert combine.knows(dtype)
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 100, 1003).astype(dtype) for _ in range(2))
    x, y, out = (xp.asarray(np.concatenate([np.zeros(shift, dtype), each])) for each in (a, b, np.zeros_like(a)))
    step = shift * x.itemsize  # an address that 16 bytes do not divide
    stream = xp.cuda.get_current_stream()
    combine.combine(op, dtype, out.data.ptr + step, x.data.ptr + step, y.data.ptr + step, a.size, stream)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out.get()[shift:], HOST[op](a, b))
    assert not out.get()[:shift].any()


@pytest.mark.parametrize("op", [MIN, MAX])
def test_nan_wins(op):
    xp = cupy()
    from psgd.kernels.device import combine

    a, b = xp.asarray([np.nan, 1.0, np.nan]), xp.asarray([1.0, np.nan, np.nan])
    combine.combine(op, "float64", a.data.ptr, a.data.ptr, b.data.ptr, 3, xp.cuda.get_current_stream())
    assert np.isnan(a.get()).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_divide(dtype):
    xp = cupy()
    from psgd.kernels.device import combine

    values = np.linspace(-5, 7, 1001).astype(dtype)
    out = xp.asarray(values)
    combine.divide(dtype, out.data.ptr, 3, out.size, xp.cuda.get_current_stream())
    np.testing.assert_array_equal(out.get(), values / np.dtype(dtype).type(3))


def test_other_types_are_not_known():
    cupy()
    from psgd.kernels.device import combine

    assert not any(map(combine.knows, ("float16", "complex64", "bool")))
