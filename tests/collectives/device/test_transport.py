import os

import numpy as np
import pytest

from psgd.collectives.device.transport import PendingRequests


@pytest.mark.ranks(2)
def test_events_are_set_when_their_requests_are_done_in_any_order(comm):
    pending, set_ = PendingRequests(), []
    assert not pending.poll()
    into = np.zeros((3, 4))
    if comm.rank == 0:
        for lane in range(3):
            pending.event(comm.Irecv(into[lane], 1, lane)).then = lambda lane=lane: set_.append(lane)
        assert not pending.poll() or set_
    comm.Barrier()
    if comm.rank == 1:
        for lane in (2, 0, 1):
            comm.Send(np.full(4, lane + 1.0), 0, lane)
    else:
        while len(set_) < 3:
            pending.poll()
            os.sched_yield()
        np.testing.assert_array_equal(into[:, 0], [1, 2, 3])
        assert sorted(set_) == [0, 1, 2] and not pending.poll()


@pytest.mark.ranks(2)
def test_an_event_may_start_another_request(comm):
    pending, into = PendingRequests(), np.zeros(2)
    peer = 1 - comm.rank

    def again():
        pending.event(comm.Irecv(into[1:], peer, 6)).then = lambda: done.append(1)

    done = []
    pending.event(comm.Irecv(into[:1], peer, 5)).then = again
    sends = [comm.Isend(np.array([float(tag)]), peer, tag) for tag in (5, 6)]
    while not done:
        pending.poll()
        os.sched_yield()
    for each in sends:
        each.Wait()
    assert into.tolist() == [5, 6]
