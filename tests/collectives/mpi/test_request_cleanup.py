"""Persistent requests are taken back with their buffers, and those that cannot end keep theirs for ever."""

import gc
import sys
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.mpi import request_cleanup


class Thing:
    """What a weak reference can tell the end of."""


def test_what_is_kept_for_ever_outlives_its_last_name():
    kept, dropped = Thing(), Thing()
    kept.part, dropped.part = Thing(), Thing()
    seen = [weakref.ref(each) for each in (kept, kept.part, dropped, dropped.part)]
    request_cleanup.keep_for_ever(kept)
    del kept, dropped
    gc.collect()
    assert [reference() is not None for reference in seen] == [True, True, False, False]


@pytest.mark.ranks(2)
@pytest.mark.alone
def test_done_or_waiting_requests_are_freed(comm):
    peer = 1 - comm.rank
    out, into, never = np.arange(5.0) + 10 * comm.rank, np.full(5, -1.0), np.full(5, -1.0)
    send, receive = comm.Send_init(out, peer, 3), comm.Recv_init(into, peer, 3)
    waiting, unused = comm.Recv_init(never, peer, 4), comm.Recv_init(never, peer, 4)
    for request in (receive, send, waiting):
        request.Start()
    MPI.Request.Waitall([receive, send])
    start = time.monotonic()
    request_cleanup.close([receive, waiting, unused], [send])
    assert time.monotonic() - start < 1
    assert all(request == MPI.REQUEST_NULL for request in (send, receive, waiting, unused))
    assert np.array_equal(into, np.arange(5.0) + 10 * peer)
    comm.Barrier()
    late = np.full(5, -1.0)
    comm.Sendrecv(out, peer, 4, late, peer, 4)  # the receives that were taken back get nothing
    assert np.array_equal(late, np.arange(5.0) + 10 * peer) and (never == -1).all()


@pytest.mark.ranks(2)
@pytest.mark.alone
def test_a_send_that_nobody_receives_keeps_its_request(comm):
    data = np.full(3_000_000, comm.rank + 1.0)  # more than MPI sends ahead of a receive
    if comm.rank == 0:
        request = comm.Ssend_init(data, 1, 5)
        request.Start()
        references = sys.getrefcount(request)
        start = time.monotonic()
        request_cleanup.close([], [request])
        assert 0.1 <= time.monotonic() - start < 1
        assert request != MPI.REQUEST_NULL and sys.getrefcount(request) == references + 1
        comm.Barrier()
        request.Wait()  # it was received after all
        request.Free()
    else:
        comm.Barrier()
        into = np.zeros_like(data)
        comm.Recv(into, 0, 5)
        assert (into == 1).all()
