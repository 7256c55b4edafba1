"""A GPU's work in streams of its own: each event is set when its copy or sum is there, not before."""

import os

import numpy as np
import pytest
from harness.device import cupy
from mpi4py import MPI

pytestmark = pytest.mark.gpu


def until(gpu, *events):
    while not all(event.done for event in events):
        gpu.poll()
        os.sched_yield()


def addresses(array):
    from psgd.collectives.arguments.device_arrays import phantom

    return phantom(array.data.ptr, array.size, array.dtype, array)


def test_copies_there_and_back():
    xp = cupy()
    from psgd.collectives.device.cuda import Cuda

    gpu, host, back = Cuda(0), np.arange(5000.0), np.zeros(5000)
    gpu.pin(host.view(np.uint8))
    gpu.pin(back.view(np.uint8))
    one, two = xp.zeros(5000), xp.zeros(5000)
    xp.cuda.Device().synchronize()  # they are made on another stream
    until(gpu, gpu.to_device(addresses(one), host))
    until(gpu, gpu.copy(addresses(two), addresses(one)))
    until(gpu, gpu.to_host(back, addresses(two)))
    np.testing.assert_array_equal(back, host)
    gpu.unpin(host.view(np.uint8))
    gpu.unpin(back.view(np.uint8))


@pytest.mark.parametrize("op", [MPI.SUM, "mean"])
def test_sums_and_means(op):
    xp = cupy()
    from psgd.collectives.arguments import operations
    from psgd.collectives.device.cuda import Cuda

    gpu, a, b, out = Cuda(0), xp.arange(1000.0), xp.full(1000, 6.0), xp.zeros(1000)
    xp.cuda.Device().synchronize()
    mean = 4 if op == "mean" else 0
    xp.cuda.get_current_stream().synchronize()
    until(gpu, gpu.combine(operations.resolve(op), addresses(out), addresses(a), addresses(b), mean))
    np.testing.assert_array_equal(out.get(), (np.arange(1000.0) + 6) / (mean or 1))


def test_scratch_memory_is_kept_by_name():
    cupy()
    from psgd.collectives.device.cuda import Cuda

    gpu = Cuda(0)
    first = gpu.scratch("a", 1000)
    assert first.nbytes == 1000
    assert gpu.scratch("a", 500).__array_interface__["data"] == first.__array_interface__["data"]
    assert gpu.scratch("b", 500).__array_interface__["data"] != first.__array_interface__["data"]
