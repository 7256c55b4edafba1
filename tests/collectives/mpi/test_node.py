"""The ranks of one node, and memory that they share."""

import os

import numpy as np
import pytest

from psgd.collectives.mpi import node, shared_memory


@pytest.mark.ranks(1, 3)
def test_here_all_ranks_are_one_node(comm):
    assert node.ranks_of_node(comm) == list(range(comm.size))


@pytest.mark.ranks(1, 3)
def test_what_one_writes_the_others_read(comm):
    memories, processes = node.share_memory(comm, list(range(comm.size)), 1000)
    if memories is None:
        pytest.skip("no shared memory here")
    assert all(memory.shape == (1000,) and not memory.any() for memory in memories)
    assert processes == comm.allgather(os.getpid())
    comm.Barrier()
    memories[comm.rank][:] = comm.rank + 1
    comm.Barrier()
    assert [set(memory.tolist()) for memory in memories] == [{rank + 1} for rank in range(comm.size)]
    comm.Barrier()


@pytest.mark.ranks(3)
def test_where_one_rank_has_none_nobody_has(comm):
    real = shared_memory.SharedArray

    def refuse(*arguments):
        raise OSError("no room")

    if comm.rank == 1:
        shared_memory.SharedArray = refuse
    try:
        memories, _ = node.share_memory(comm, [0, 1, 2], 100)
    finally:
        shared_memory.SharedArray = real
    assert memories is None


@pytest.mark.ranks(1, 3)
def test_all_agree(comm):
    assert node.all_agree(comm, True)
    assert not node.all_agree(comm, comm.rank > 0)


def test_the_address_is_that_of_the_first_element():
    array = np.arange(20.0)
    for view in (array, array[3:], array[::2], array[::-1], array.reshape(4, 5).T, array[:0]):
        assert node.address_of(view) == view.__array_interface__["data"][0]
