"""What ranks of a host share; `test_on_device` has ranks that map each other's memory."""

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group

pytestmark = pytest.mark.gpu


def test_one_rank_is_no_group(monkeypatch):
    cupy()
    from mpi4py import MPI

    from psgd.collectives.peers.group import PeerGroup

    monkeypatch.setenv("PSGD_PEERS", "1")
    assert PeerGroup.create(MPI.COMM_SELF, 0) is None


def test_arguments_are_copies_with_the_call_words():
    cupy()
    (first, _), _ = group(2)
    one, two = first.arguments(3, 4), first.arguments(5, 0)
    assert (one.fingerprint, one.shape, two.fingerprint, two.shape) == (3, 4, 5, 0)
    assert list(one.base) == list(two.base) == list(first.head.base) and one.rank == 0


def test_a_call_on_another_stream_follows_the_last_one():
    xp = cupy()
    (first, _), (one, two) = group(2)
    x = xp.zeros(1, np.float32)
    busy = xp.ones(1 << 24, np.float32)
    with one:
        for _ in range(50):
            busy *= 1.0001
        x[...] = 1
    first.started(one.ptr)
    first.follow(two.ptr)
    with two:
        seen = x + 1
    two.synchronize()
    assert float(seen[0]) == 2.0


def test_orders_are_taken_back():
    cupy()
    (first, _), _ = group(2)
    first.order_end()
    first.host[1] = 9
    assert first.forgive() == 9 and first.forgive() == 0 and int(first.host[0]) == 0


def test_scratch_grows_and_is_kept():
    cupy()
    (first, _), _ = group(2)
    small = first.scratch(10)
    assert first.scratch(5) == small and first.scratch(1 << 20) and first.scratch(1 << 20) == first.scratch(3)
