"""Events that are over, that are not, and that never will be."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness.device import cupy
from harness.played_cupy import CUDARuntimeError, played_cupy


def test_an_error_is_not_taken_for_later():
    with played_cupy() as cuda:
        from psgd.kernels.device.events import over

        for status, expected in ((0, True), (600, False)):
            cuda.status = [status]
            assert over(SimpleNamespace(ptr=1)) is expected
        cuda.status = [700]  # an illegal address
        with pytest.raises(CUDARuntimeError, match="700"):
            over(SimpleNamespace(ptr=1))


@pytest.mark.gpu
def test_over_once_the_stream_is_done():
    xp = cupy()
    from psgd.kernels.device.events import over

    with xp.cuda.Stream(non_blocking=True) as stream:
        busy = xp.ones(1 << 24, np.float32)
        for _ in range(50):
            busy *= 1.0001
        event = stream.record()
        assert not over(event)
        stream.synchronize()
        assert over(event)
