"""Which library an array belongs to."""

import numpy as np
import pytest

from psgd.kernels.array import address, array_module
from psgd.kernels.errors import UsageError


def test_numpy():
    assert array_module(np.zeros(3)) is np


def test_where_it_begins():
    array = np.zeros(3)
    assert address(array[1:]) == address(array) + array.itemsize == array.ctypes.data + array.itemsize


@pytest.mark.parametrize("wrong", [[1.0], 3, None, memoryview(b"abc")])
def test_others_are_refused(wrong):
    with pytest.raises(UsageError, match="NumPy or CuPy"):
        array_module(wrong)


@pytest.mark.gpu
def test_cupy():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU")
    assert array_module(cupy.zeros(3)) is cupy
    array = cupy.zeros(3)
    assert address(array[1:]) == array.data.ptr + array.itemsize
