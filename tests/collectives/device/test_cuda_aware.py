"""Segments round a ring of ranks, with host memory in place of the GPU's."""

import os

import numpy as np
import pytest

from psgd.collectives.device.cuda_aware import CudaAwareMpi


@pytest.mark.ranks(2, 3)
def test_lanes_do_not_meet(comm):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    own = comm.Dup()
    way = CudaAwareMpi(own, left, right)
    into = np.zeros((way.lanes, 5))
    data = np.array([[100.0 * lane + comm.rank] * 5 for lane in range(way.lanes)])
    events = [way.receive(None, lane, into[lane]) for lane in reversed(range(way.lanes))]
    events += [way.send(None, lane, data[lane]) for lane in range(way.lanes)]
    while not all(event.done for event in events):
        way.poll()
        os.sched_yield()
    np.testing.assert_array_equal(into[:, 0], [100.0 * lane + left for lane in range(way.lanes)])
    way.close()
    own.Free()
