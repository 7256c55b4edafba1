"""The host's wait for a call of peers."""

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group
from mpi4py import MPI

pytestmark = pytest.mark.gpu


def call(x):
    from psgd.collectives.arguments import parse

    return parse.VERBS["Allreduce"](2, 0, MPI.IN_PLACE, x, MPI.SUM)


def test_a_rank_whose_peers_are_in_another_call_ends_after_a_moment():
    xp = cupy()
    import time

    from psgd.collectives.peers.run import PeerRun

    (first, _), _ = group(2)
    run = PeerRun(first, call(xp.ones(1000, np.float32)), 5, lambda: True)
    assert run.kernel == "flagged" and not run.needs_memory
    began = time.perf_counter()
    for test in run.steps():
        while not test():
            assert time.perf_counter() - began < 5
    assert run.verdict and 0.25 < time.perf_counter() - began < 2
    assert first.forgive() == 0


def test_both_ranks_end_without_a_verdict():
    xp = cupy()
    from psgd.collectives.peers.run import PeerRun

    groups, streams = group(2)
    arrays = [xp.full(1000, 1 + rank, np.float32) for rank in range(2)]
    xp.cuda.Device().synchronize()
    waits = []
    for each, stream, array in zip(groups, streams, arrays, strict=True):
        with stream:
            run = PeerRun(each, call(array), 5, lambda: False)
            steps = run.steps()
            waits.append((run, steps, next(steps)))
    for run, steps, test in waits:
        while not test():
            pass
        assert next(steps, None) is None and run.verdict == 0
    assert all((array == 3).all() for array in arrays)


def test_large_calls_need_their_slots_first():
    xp = cupy()
    from psgd.collectives.peers.run import PeerRun

    (first, _), _ = group(2)
    first.wide = False
    assert PeerRun(first, call(xp.ones(1 << 22, np.float32)), 5, lambda: False).needs_memory
