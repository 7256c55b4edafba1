"""On the host there is nothing to order; on a GPU, a stream beside the caller's waits for it."""

import numpy as np
import pytest

from psgd.parallel.sharded.order import behind


def test_nothing_on_the_host():
    with behind(np.zeros(1))():
        pass


def test_a_stream_of_its_own_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    order = behind(cupy.zeros(1))
    before = cupy.cuda.get_current_stream()
    with order():
        assert cupy.cuda.get_current_stream() != before
    assert cupy.cuda.get_current_stream() == before
