"""Sums over rows against NumPy's, and the same bits each time."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (100, 31), (5000, 32), (70_001, 10), (300, 1000)])
@pytest.mark.parametrize("masked", [False, True])
def test_every_row_counts_once(dtype, shape, masked):
    xp = cupy()
    from psgd.kernels.device.column_sum import column_sum

    rng = np.random.default_rng(shape[0])
    values = rng.integers(-8, 9, shape).astype(dtype)  # sums are exact in any order
    y = rng.integers(-1, 2, shape).astype(dtype)
    there, out = xp.asarray(values), xp.full(shape[1], np.nan, dtype)
    column_sum(there, out, xp.asarray(y) if masked else None)
    kept = np.where(y > 0, values, 0) if masked else values
    np.testing.assert_array_equal(out.get(), kept.sum(0))
    np.testing.assert_array_equal(there.get(), kept)


def test_sums_repeat():
    xp = cupy()
    from psgd.kernels.device.column_sum import column_sum

    values = xp.asarray(np.random.default_rng(1).normal(size=(50_001, 17)).astype(np.float32))
    outs = [xp.empty(17, np.float32) for _ in range(3)]
    for out in outs:
        column_sum(values, out)
    assert len({out.get().tobytes() for out in outs}) == 1


def test_scratch_memory_is_used_again_until_it_is_too_small():
    cupy()
    from psgd.kernels.device.column_sum import scratch

    first = scratch("test", 1000, "float32")
    again = scratch("test", 500, "float32")
    assert again.data.ptr == first.data.ptr and again.size == 500
    assert scratch("test", 1 << 20, "float32").size == 1 << 20
    assert scratch("another", 500, "float32").data.ptr != first.data.ptr
