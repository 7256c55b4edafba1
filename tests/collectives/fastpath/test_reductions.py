"""Which reductions take the fast path, and that they give the values of MPI's own."""

import numpy as np
import pytest
from harness.oracle import communicator
from mpi4py import MPI


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("n", [1, 1000, 40_000])
@pytest.mark.parametrize("name", ["SUM", "PROD", "MIN", "MAX"])
def test_they_combine_as_mpi_does(comm, n, name):
    op, size = getattr(MPI, name), comm.size
    mine = np.arange(1, n * size + 1) % 7 + comm.rank + 1
    for dtype in ("int64", "float32"):
        send, got, wanted = mine.astype(dtype), np.zeros(n * size, dtype), np.zeros(n * size, dtype)
        comm.Allreduce(send, wanted, op)
        with communicator(comm) as c:
            assert c._fast.allreduce(send, got, op)
            np.testing.assert_array_equal(got, wanted)
            got[:] = send
            assert c._fast.allreduce(MPI.IN_PLACE, got, op)
            np.testing.assert_array_equal(got, wanted)
            block = np.zeros(n, dtype)
            assert c._fast.reduce_scatter_block(send, block, op)
            np.testing.assert_array_equal(block, wanted[comm.rank * n : (comm.rank + 1) * n])


@pytest.mark.ranks(2)
def test_others_are_left_to_the_general_path_untouched(comm):
    with communicator(comm) as c:
        x, y = np.ones(6), np.zeros(6)
        own = MPI.Op.Create(lambda a, b, t: None)
        refused = [
            (x, y, own),
            (x, y[::2], MPI.SUM),
            (x[:5], y, MPI.SUM),
            (x.astype("f4"), y, MPI.SUM),
            (x.tolist(), y, MPI.SUM),
            (x, y.astype("f2"), MPI.SUM),
            (np.ones(6, int), np.zeros(6, int), "mean"),
            (np.ones(6, complex), np.zeros(6, complex), MPI.MAX),
        ]
        for send, receive, op in refused:
            assert not c._fast.allreduce(send, receive, op)
        assert not y.any()
        own.Free()
        comm.Barrier()
