"""A thread for each element, of any type that is only copied."""

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu
SOURCE = r"""
extern "C" __global__ void turn(const T* x, T* out, int n) {
    const I i = INDEX;
    if (i < n) out[i] = x[n - 1 - i];
}
"""


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_each_element_is_written_once(dtype, n):
    xp = cupy()
    from psgd.kernels.device.each import each, ints

    x = xp.arange(n).astype(dtype)
    out = xp.full(n + 3, -1, dtype)
    each(SOURCE, "turn", n, x, x, out, *ints((n,)))
    np.testing.assert_array_equal(out.get(), [*range(n - 1, -1, -1), -1, -1, -1])


def test_a_kernel_is_compiled_once():
    cupy()
    from psgd.kernels.device.each import kernel

    assert kernel(SOURCE, "turn", "float32") is kernel(SOURCE, "turn", "float32")
    assert kernel(SOURCE, "turn", "float32") is not kernel(SOURCE, "turn", "float32", True)
