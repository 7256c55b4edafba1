"""Copies both ways beside the computation, on a GPU."""

import threading

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu
N = 1 << 22


def test_copies_wait_for_moments_and_moments_for_copies():
    xp = cupy()
    from psgd.backend.offload.bus import CudaBus, pinned_copy, zeros_pinned

    bus = CudaBus()
    there = bus.device(N, "float32")
    host, back = pinned_copy(np.arange(N, dtype=np.float32)), zeros_pinned(np.empty(N, np.float32))
    assert not back.any()
    pins = bus.pin(host, np.zeros(N))
    come = bus.up(there, host, None)
    bus.hold(come)
    big = xp.ones((4096, 4096), "float32")
    for _ in range(20):  # the copy down has to wait for these
        big @ big
    there *= 2
    gone = bus.down(back, there, bus.mark())
    gone.wait()
    assert gone.passed() and come.passed()
    np.testing.assert_array_equal(back, 2 * host)
    del pins


def test_other_threads_copy_up():
    xp = cupy()
    from psgd.backend.offload.bus import CudaBus, pinned_copy

    bus = CudaBus()
    there = bus.device(N, "float32")
    host = pinned_copy(np.full(N, 3, np.float32))
    moments = []
    thread = threading.Thread(target=lambda: moments.append(bus.up(there, host, None)))
    thread.start()
    thread.join()
    bus.hold(moments[0])
    assert float(xp.sum(there)) == 3 * N
