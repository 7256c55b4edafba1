"""The fast path of device arrays: what it knows, and what it must leave to the general path."""

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group
from mpi4py import MPI

pytestmark = pytest.mark.gpu


def made(each, x, op=MPI.SUM):
    from psgd.collectives.arguments import parse
    from psgd.collectives.peers import calls

    return calls.prepare(each, parse.VERBS["Allreduce"](2, each.rank, MPI.IN_PLACE, x, op), 5)


def test_a_call_is_known_by_address_size_type_operation_and_extents():
    xp = cupy()
    from psgd.collectives.peers.fast import FastPeers

    (first, _), _ = group(2)
    fast = FastPeers(first, lambda: False)
    x = xp.ones(1000, np.float32)
    assert fast.find(MPI.IN_PLACE, x, MPI.SUM) is None
    kernel = made(first, x)
    fast.remember(kernel)
    assert kernel.keep is None  # the caller's array may go
    assert fast.find(MPI.IN_PLACE, x, MPI.SUM) is kernel and fast.find(x, x, MPI.SUM) is kernel
    for other in (x[:999], x[1:], x.view(np.int32), x.reshape(10, 100), x.copy()):
        assert fast.find(MPI.IN_PLACE, other, MPI.SUM) is None
    assert fast.find(MPI.IN_PLACE, x, MPI.MAX) is None
    for strange in (np.ones(1000, np.float32), x[::2], "x", None):
        assert fast.find(MPI.IN_PLACE, strange, MPI.SUM) is None and fast.missed is None
    assert fast.find(x.astype(np.float64), x, MPI.SUM) is None and fast.missed is None


def test_both_ranks_sum():
    xp = cupy()
    from psgd.collectives.peers.fast import FastPeers

    groups, streams = group(2)
    arrays = [xp.full(1000, 1 + rank, np.float32) for rank in range(2)]
    kernels = [made(each, x) for each, x in zip(groups, arrays, strict=True)]
    xp.cuda.Device().synchronize()
    for each, kernel, array, stream in zip(groups, kernels, arrays, streams, strict=True):
        FastPeers(each, lambda: False).enqueue(kernel, array, stream)
    for stream in streams:
        stream.synchronize()
    assert all((array == 3).all() for array in arrays)


def test_a_call_that_takes_long_gives_a_wait():
    xp = cupy()
    from psgd.collectives.peers.fast import FastPeers

    (first, _), (stream, _) = group(2)
    x = xp.ones(1000, np.float32)
    xp.cuda.Stream.null.synchronize()
    wait = FastPeers(first, lambda: False).start(made(first, x), x, stream)
    assert wait is not None and not wait()
    first.order_end()
    stream.synchronize()
    assert wait() and wait.verdict
