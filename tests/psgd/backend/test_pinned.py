"""Page-locked memory, and copies that the GPU makes by itself."""

import mmap

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(0,), (7,), (3, 5)])
def test_there_and_back(shape):
    xp = cupy()
    from psgd.backend import pinned

    host, back = pinned.empty(shape, np.float32), pinned.empty(shape, np.float32)
    host[...] = np.arange(host.size).reshape(shape)
    there = xp.zeros(shape, np.float32)
    pinned.upload(there, host)
    pinned.download(back, there)
    pinned.wait()
    np.testing.assert_array_equal(back, host)


def test_a_kernel_reads_and_writes_it_where_it_lies():
    xp = cupy()
    from psgd.backend import pinned

    host = pinned.empty((100,), np.float64)
    host[:] = 1.0
    seen = pinned.seen_by_device(host)
    seen += 2.0
    xp.cuda.get_current_stream().synchronize()
    assert (host == 3.0).all()


def test_memory_that_is_there_is_locked_and_released():
    cupy()
    from psgd.backend import pinned

    memory = np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), np.uint8)
    for _ in range(2):  # a second time fails where the first was not released
        pin = pinned.Pin(memory, memory[1:100])  # the second begins inside a page: left alone
        assert len(pin._arrays) == 1
        pin.release()
