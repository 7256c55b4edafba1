"""Which library an array belongs to."""

import numpy as np
import pytest

from psgd.kernels.array import array_module
from psgd.kernels.errors import UsageError


def test_numpy():
    assert array_module(np.zeros(3)) is np


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
