"""Vectors on either side."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.runtime import device_vectors as v


@pytest.mark.parametrize("side", ["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_fill_and_read(side):
    xp = np if side == "host" else cupy()
    array = xp.zeros(5, np.float32)
    assert v.on_device(array) == (side == "gpu")
    v.fill(array, np.arange(5, dtype=np.float64) / 4)
    np.testing.assert_array_equal(v.on_host(array), [0, 0.25, 0.5, 0.75, 1])
    assert (v.on_host(array) is array) == (side == "host")


class Registering:
    def empty(self, shape, dtype):
        return np.zeros(shape, dtype)


@pytest.mark.parametrize("side", ["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_registered_is_where_the_vector_is(side):
    xp = np if side == "host" else cupy()
    like = xp.ones(7, np.float32)
    made = v.registered(Registering(), like)
    assert (type(made), made.shape, made.dtype) == (type(like), like.shape, like.dtype)
    assert not made.any()
