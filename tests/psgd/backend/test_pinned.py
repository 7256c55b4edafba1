"""Page-locked memory: copies both ways, memory that exists, and the same memory on either side."""

import mmap

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def test_copies_and_shared_memory():
    xp = cupy()
    from psgd.backend import pinned

    host = pinned.empty((3, 5), "float32")
    host[:] = np.arange(15).reshape(3, 5)
    there, back = xp.zeros((3, 5), "float32"), pinned.empty((3, 5), "float32")
    pinned.upload(there, host)
    there *= 2
    pinned.download(back, there)
    pinned.wait()
    assert np.array_equal(back, 2 * np.arange(15).reshape(3, 5))
    seen = pinned.seen_by_device(host)
    seen += 1
    pinned.wait()
    assert host[0, 0] == 1
    assert pinned.empty((0,), "int64").size == 0


def test_memory_that_exists_is_locked_and_released():
    cupy()
    from psgd.backend import pinned

    memory = np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), np.uint8)
    pin = pinned.Pin(memory, memory[1:])  # the second does not begin with a page: left as it is
    pin.release()
    pinned.Pin(memory).release()  # locking twice at once would fail
