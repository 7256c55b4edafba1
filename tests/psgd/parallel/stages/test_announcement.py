"""What one rank tells all others."""

import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.parallel.stages.announcement import Announcement


@pytest.mark.ranks(1, 3)
def test_all_know_what_one_tells(comm):
    private, source = comm.Dup(), comm.size - 1
    told, waiter = Announcement(private, source), Waiter(True)
    for number in range(10):
        if comm.rank == source:
            told.tell(number + 0.5, -number)
        waiter.until(told.known)
        assert told.values == (number + 0.5, -number)
    private.Barrier()
    told.close()
    private.Free()
