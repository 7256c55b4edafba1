"""What kernels of peers are compiled for."""

import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def test_types_and_operations():
    cupy()
    from psgd.kernels.device.peers import elements
    from psgd.kernels.reduce import MAX, SUM

    assert all(elements.knows(kind) for kind in ("float32", "float64", "float16", "bfloat16", "int8", "uint64"))
    assert not elements.knows("complex64") and not elements.knows("bool")
    assert "typedef double T" in elements.source("float64", SUM) and "x + y" in elements.source("float64", SUM)
    assert "typedef float A" in elements.source("bfloat16", MAX)
