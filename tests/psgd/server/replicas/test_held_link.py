"""A server's link to a worker, whose segments become others: each gradient lies where its segments are then."""

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.mpi.tags import Tag
from psgd.server.replicas.held_link import HeldLink


@pytest.mark.ranks(2)
def test_a_gradient_is_here_once_all_segments_are(comm):
    first, second = [range(0, 4), range(4, 6)], [range(6, 9), range(0, 4), range(4, 6)]
    gradient = np.arange(9.0)
    if comm.rank:
        for ranges in (first, second):
            for part in ranges:
                comm.Send([gradient[part.start : part.stop], MPI.BYTE], 0, Tag.GRADIENT)
            comm.Barrier()
        comm.Send_init([gradient[:3], MPI.BYTE], 0, Tag.GRADIENT)
        comm.Barrier()
        return
    link = HeldLink(comm, 1, np.zeros(9), None, 0)
    assert link.layout == -1 and link.came()
    for layout, ranges in enumerate((first, second)):
        link.hold(layout, ranges, answered=1)
        assert link.layout == layout and len(link.params_out) == 1
        link.expect()
        link.expect()  # it waits already
        while not link.came():
            pass
        assert [slot.tolist() for slot in link.slots] == [list(part) for part in ranges]
        comm.Barrier()
    link.expect()
    link.hold(2, [], answered=0)  # what waits for nothing is taken back
    assert link.came()
    comm.Barrier()


@pytest.mark.ranks(2)
def test_what_is_read_where_it_lies_is_never_awaited(comm):
    link = HeldLink(comm, 1 - comm.rank, np.zeros(9), np.arange(9.0), 0)
    link.hold(0, [range(2, 4)], answered=0)
    assert link.came() and link.shared[0].tolist() == [2, 3] and link.params_out == []
