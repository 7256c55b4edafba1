"""Max pooling: what no window covers has no gradient, however often the buffers are used."""

import numpy as np
from harness.layers import Run

from psgd.nn.maxpool import MaxPool


def test_the_remainder_has_no_gradient():
    run = Run(MaxPool(2), (5, 7, 3))
    for _ in range(2):
        y, dx = run.backward()
        np.testing.assert_array_equal(y, run.x[:, :4, :6].reshape(-1, 2, 2, 3, 2, 3).max(axis=(2, 4)))
        assert not dx[:, 4:].any() and not dx[:, :, 6:].any()
        assert np.count_nonzero(dx) == y.size
        np.testing.assert_allclose(dx.sum(axis=(1, 2)), run.dy.sum(axis=(1, 2)), rtol=1e-13)
