"""Kernels that nobody waits for."""

import time

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group
from mpi4py import MPI

pytestmark = pytest.mark.gpu


def test_a_kernel_whose_peer_is_lost_ends_by_itself():
    xp = cupy()
    from psgd.collectives.arguments import parse
    from psgd.collectives.peers import calls
    from psgd.collectives.peers.watch import PeerWatch

    (first, _), (stream, _) = group(2)
    lost = []
    watch = PeerWatch(first, lambda: bool(lost))
    x = xp.ones(1000, np.float32)
    calls.prepare(first, parse.VERBS["Allreduce"](2, 0, MPI.IN_PLACE, x, MPI.SUM), 5).start(stream.ptr)
    time.sleep(0.4)
    assert not stream.done  # it waits for a rank that is late
    lost.append(1)
    began = time.perf_counter()
    stream.synchronize()
    assert time.perf_counter() - began < 1
    watch.close()
