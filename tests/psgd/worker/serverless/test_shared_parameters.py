"""Memory that the workers of a node have in common."""

import numpy as np
import pytest
from harness.peers import nodes_of_two

from psgd.collectives.mpi.node import address_of
from psgd.worker.serverless.counter_lines import BYTES
from psgd.worker.serverless.shared_parameters import SharedParameters


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_see_what_one_writes(comm, dtype):
    memory = SharedParameters(comm, np.zeros(5, dtype), tallies=True)
    assert memory.ranks == list(range(comm.size)) and memory.lines.place == comm.rank
    assert memory.params.dtype == dtype and memory.params.shape == memory.tally.shape == (5,)
    assert not memory.params.any() and memory.tally.itemsize == memory.params.itemsize
    assert address_of(memory.params) % BYTES == address_of(memory.tally) % BYTES == 0
    comm.Barrier()
    if comm.rank == comm.size - 1:
        memory.params[:] = 3
        memory.tally[:] = 4
        memory.lines.count(7, 1.0)
    comm.Barrier()
    assert memory.params.tolist() == [3] * 5 and memory.tally.tolist() == [4] * 5
    assert memory.lines.sums() == (1, 7, 7.0)
    comm.Barrier()


@pytest.mark.ranks(4)
def test_each_node_has_its_own(comm):
    with nodes_of_two():
        memory = SharedParameters(comm, np.zeros(3), tallies=False)
    assert memory.ranks == [comm.rank % 2, comm.rank % 2 + 2] and memory.tally is None
    comm.Barrier()
    if memory.lines.place == 0:
        memory.params[:] = 10 + comm.rank
    comm.Barrier()
    assert memory.params.tolist() == [10 + comm.rank % 2] * 3
    comm.Barrier()
