"""How calls begin and end: they compare themselves, and none waits for ever."""

import time
from ctypes import c_uint64

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group

from psgd.kernels.reduce import SUM

pytestmark = pytest.mark.gpu


def start(each, stream, x, fingerprint=7, shape=0, name="flagged"):
    from psgd.kernels.device.peers import launch

    cupy().cuda.Stream.null.synchronize()
    head = each.arguments(fingerprint, shape)
    arguments = [head, c_uint64(x.data.ptr), c_uint64(x.data.ptr), c_uint64(x.size), launch.number("float32", 0)]
    launch.Launch(each.function("float32", SUM, name), arguments)(2, 256, stream.ptr)


@pytest.mark.parametrize("name", ["flagged", "pulled"])
@pytest.mark.parametrize("differs", ["fingerprint", "shape"])
def test_calls_that_differ_end_everywhere_and_the_next_ones_work(name, differs):
    xp = cupy()
    groups, streams = group(3)
    x = [xp.ones(2000, np.float32) for _ in groups]
    for rank, (each, stream) in enumerate(zip(groups, streams, strict=True)):
        start(each, stream, x[rank], **{differs: 100 + (rank == 1)}, name=name)
    for stream in streams:
        stream.synchronize()
    verdicts = [each.forgive() for each in groups]
    assert verdicts[0] == verdicts[2] == 2 and verdicts[1] in (1, 3)  # 1 + the rank that differs
    x = [xp.ones(2000, np.float32) for _ in groups]
    for rank, (each, stream) in enumerate(zip(groups, streams, strict=True)):
        start(each, stream, x[rank], name=name)
    for stream in streams:
        stream.synchronize()
    assert [each.forgive() for each in groups] == [0, 0, 0]
    assert all((each == 3).all() for each in x)


@pytest.mark.parametrize("name", ["flagged", "pulled"])
def test_a_call_whose_peers_never_come_ends_when_the_host_says_so(name):
    xp = cupy()
    from psgd.kernels.device.peers.common import LOST

    groups, streams = group(2)
    x = xp.ones(2000, np.float32)
    start(groups[0], streams[0], x, name=name)
    time.sleep(0.2)
    assert not streams[0].done and int(groups[0].host[2]) == 1  # it says that it waits
    groups[0].order_end()
    began = time.perf_counter()
    streams[0].synchronize()
    assert time.perf_counter() - began < 0.5
    assert groups[0].forgive() == LOST


def test_a_graph_counts_its_calls():
    xp = cupy()
    groups, streams = group(2)
    x = [xp.full(1000, 1.0, np.float32) for _ in groups]
    for each, stream, array in zip(groups, streams, x, strict=True):
        start(each, stream, array)
    graphs = []
    for each, stream, array in zip(groups, streams, x, strict=True):
        stream.synchronize()
        with stream:
            stream.begin_capture()
            for _ in range(3):
                start(each, stream, array)
            graphs.append(stream.end_capture())
    for _ in range(4):
        for graph, stream in zip(graphs, streams, strict=True):
            graph.launch(stream)
    for stream in streams:
        stream.synchronize()
    assert all((array == 2.0**13).all() for array in x)
