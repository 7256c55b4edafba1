import numpy as np

from psgd.kernels.jit import kernel


def test_a_kernel_that_cannot_be_cached_is_compiled_all_the_same():
    scope = {}
    exec("def twice(x):\n    for i in range(x.size):\n        x[i] *= 2\n", scope)  # no file, so no place for a cache
    values = np.arange(4.0)
    kernel(scope["twice"])(values)
    np.testing.assert_array_equal(values, [0, 2, 4, 6])
