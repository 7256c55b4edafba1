"""Arrays read where they lie: private ones in blocks, registered ones as one's own memory."""

import numpy as np
import pytest
from harness.channel import values
from harness.oracle import VERBS, check, communicator
from mpi4py import MPI

from psgd.collectives.shm import layout

BLOCK, FETCH = layout.BLOCK_BYTES // 8, layout.FETCH_BYTES // 8


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("verb", VERBS)
def test_private_memory_around_a_block(comm, verb):
    with communicator(comm) as c:
        for n in (1, BLOCK + 1, FETCH - 1, comm.size * FETCH + 3):
            check(c, verb, n, "float64", algorithm="direct")


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("n", [1, 4097, 100_003])
def test_registered_memory_is_combined_in_place(comm, n):
    with communicator(comm) as c:
        array = c.empty(n, "float64")
        array[:] = values(comm.rank, n, "float64")
        wanted = sum(values(rank, n, "float64") for rank in range(comm.size))
        c.Allreduce(MPI.IN_PLACE, array, algorithm="direct")
        np.testing.assert_array_equal(array, wanted)
        assert c.last == ("direct", "registered")
        del array
