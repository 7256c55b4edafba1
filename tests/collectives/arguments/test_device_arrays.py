"""Device buffers of callers: their elements in logical order, on the device and on the host, and back."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.errors import UsageError

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", ["plain", "strided", "transposed", "empty"])
def test_elements_in_logical_order_and_back(shape):
    xp = cupy()
    from psgd.collectives.arguments import device_arrays

    whole = xp.arange(24.0).reshape(4, 6)
    array = {"plain": whole, "strided": whole[::2, ::3], "transposed": whole.T, "empty": whole[:0]}[shape]
    view = device_arrays.view(array, "recvbuf", True)
    np.testing.assert_array_equal(view.flat, array.get().reshape(-1))
    assert (view.size, view.shape, view.kind, view.device) == (array.size, array.shape, "float64", array.device.id)
    view.flat[:] = np.arange(array.size) + 100
    view.write_back()
    xp.cuda.get_current_stream().synchronize()
    np.testing.assert_array_equal(array.get().reshape(-1), np.arange(array.size) + 100)


def test_only_a_part_is_written_back():
    xp = cupy()
    from psgd.collectives.arguments import device_arrays

    array = xp.zeros(10)
    part = device_arrays.view(array, "recvbuf", True).part(3, 4)
    part.flat[:] = 1.0
    part.write_back()
    xp.cuda.get_current_stream().synchronize()
    assert array.get().tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]


def test_what_is_no_array_is_named():
    cupy()
    from psgd.collectives.arguments import device_arrays

    with pytest.raises(UsageError, match="sendbuf: expected"):
        device_arrays.view(object(), "sendbuf", False)
