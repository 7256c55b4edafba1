"""Memory that a node's workers have in common."""

import os

import numpy as np
import pytest
from harness.peers import nodes_of_two

from psgd.collectives.mpi.node import address_of
from psgd.kernels.errors import UsageError
from psgd.worker.serverless.shared_parameters import SharedParameters, share


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_of_a_node_see_one_vector(comm, dtype):
    memory = SharedParameters(comm, np.zeros(100, dtype), tallies=True)
    assert memory.ranks == list(range(comm.size)) and memory.lines.place == comm.rank
    assert memory.params.shape == memory.tally.shape == (100,) and memory.tally.itemsize == memory.params.itemsize
    assert address_of(memory.params) % 64 == address_of(memory.tally) % 64 == 0
    comm.Barrier()
    memory.params[comm.rank] = comm.rank + 1
    memory.lines.count(2, 0.5)
    comm.Barrier()
    assert memory.params[: comm.size].tolist() == [rank + 1 for rank in range(comm.size)]
    assert not memory.params[comm.size :].any() and not memory.tally.any()
    assert memory.lines.sums() == (comm.size, 2 * comm.size, comm.size * 1.0)
    comm.Barrier()


@pytest.mark.ranks(5)
def test_each_node_has_its_own(comm):
    with nodes_of_two():
        memory = SharedParameters(comm, np.zeros(4), tallies=False)
    assert memory.ranks == list(range(comm.rank % 2, 5, 2)) and memory.tally is None
    comm.Barrier()
    if comm.rank == memory.ranks[0]:
        memory.params[:] = comm.rank + 1
    comm.Barrier()
    assert memory.params.tolist() == [comm.rank % 2 + 1] * 4
    comm.Barrier()


@pytest.mark.ranks(3)
def test_where_one_cannot_all_are_told_who_wanted_it(comm):
    os.environ["PSGD_SHARED"] = "0" if comm.rank == 2 else "1"
    try:
        with pytest.raises(UsageError, match=r"who wants it on rank 2: expected memory shared by ranks \[0, 1, 2\]"):
            share(comm, [0, 1, 2], 100, "who wants it")
    finally:
        del os.environ["PSGD_SHARED"]


@pytest.mark.ranks(2)
def test_alone_on_a_node_it_is_private_and_begins_a_cache_line(comm):
    memory = share(comm, [comm.rank], 100, "nobody")
    assert memory.nbytes == 100 and address_of(memory) % 64 == 0 and not memory.any()
