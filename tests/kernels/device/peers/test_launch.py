"""Starting kernels with arguments that were packed once."""

import ctypes

import numpy as np
import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def test_arguments_are_read_at_each_start():
    xp = cupy()
    from psgd.kernels.device.peers import launch

    source = 'extern "C" __global__ void put(unsigned long long* to, unsigned long long v) { *to = v; }'
    out, value = xp.zeros(1, np.uint64), ctypes.c_uint64(3)
    start = launch.Launch(xp.RawKernel(source, "put").kernel, [ctypes.c_uint64(out.data.ptr), value])
    stream = xp.cuda.Stream(non_blocking=True)
    seen = []
    for number in (3, 5):
        value.value = number
        start(1, 1, stream.ptr)
        stream.synchronize()
        seen.append(int(out[0]))
    assert seen == [3, 5]


def test_structures_are_the_kernels():
    cupy()
    from psgd.kernels.device.peers import launch

    assert ctypes.sizeof(launch.group_type(4)) == 4 * 16 + 8 + 8 + 16
    assert ctypes.sizeof(launch.chunks_type(4)) == 64
    assert isinstance(launch.number("float16", 4), ctypes.c_float)
    text = launch.text("flagged", "float32", 0, 4, {"FLAGGED_WORDS": 99})
    assert "#define P 4" in text and "#define FLAGGED_WORDS 99" in text
