"""Which calls of Allgather, Bcast and Barrier take the fast path, and that they give the values of MPI's own."""

import numpy as np
import pytest
from harness.oracle import communicator
from mpi4py import MPI


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("n", [0, 1, 1000, 40_000])
def test_they_move_what_mpi_moves(comm, n):
    mine = np.arange(n) * 10.0 + comm.rank
    with communicator(comm) as c:
        got, wanted = np.full(n * comm.size, -1.0), np.full(n * comm.size, -2.0)
        assert c._fast.allgather(mine, got)
        comm.Allgather(mine, wanted)
        np.testing.assert_array_equal(got, wanted)
        got[:] = -1
        got[comm.rank * n : (comm.rank + 1) * n] = mine
        assert c._fast.allgather(MPI.IN_PLACE, got)
        np.testing.assert_array_equal(got, wanted)
        for root in range(comm.size):
            buf = mine.copy()
            assert c._fast.bcast(buf, root)
            np.testing.assert_array_equal(buf, np.arange(n) * 10.0 + root)
        assert c._fast.barrier()


@pytest.mark.ranks(2)
def test_others_are_left_to_the_general_path_untouched(comm):
    with communicator(comm) as c:
        whole, part = np.full(8, -1.0), np.ones(4)
        refused = [
            (part.tolist(), whole),
            (part, whole[::2]),
            (part[:3], whole),
            (part.astype("f4"), whole),
            (part, whole.astype(">f8")),
            (whole[1:5], whole),  # overlaps, and is not in place
            (part, np.full(9, -1.0)),
        ]
        for send, receive in refused:
            assert not c._fast.allgather(send, receive)
        assert (whole == -1).all()
        constant = np.ones(4)
        constant.flags.writeable = False
        assert not c._fast.bcast([1.0], 0) and not c._fast.bcast(part, 2) and not c._fast.bcast(part, np.int64(0))
        assert comm.rank == 0 or not c._fast.bcast(constant, 0)
        comm.Barrier()
