"""Memory that ranks of a node register with each other."""

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives import Communicator
from psgd.collectives.mpi.node import address_of
from psgd.collectives.shm import layout
from psgd.collectives.shm.registered import Node


def made(comm):
    node = Node.create(comm, list(range(comm.size)))
    if node is None:
        pytest.skip("no shared memory here")
    return node


@pytest.mark.ranks(2, 3)
def test_a_range_is_found_in_its_registration(comm):
    node = made(comm)
    one, two = node.register(1000), node.register(64)
    assert node.find(address_of(one), 1000) == (1, 0)
    assert node.find(address_of(one) + 100, 900) == (1, 100)
    assert node.find(address_of(two) + 8, 8) == (2, 8)
    assert node.find(address_of(one) + 100, 901) == (-1, 0)
    assert node.find(address_of(np.zeros(3)), 24) == (-1, 0)
    one[:] = comm.rank + 1
    comm.Barrier()
    assert [set(memory[:1000].tolist()) for memory in node._registered[1]] == [{r + 1} for r in range(comm.size)]
    comm.Barrier()
    del one, two
    node.close()


@pytest.mark.ranks(2)
def test_memory_that_nobody_holds_gives_its_number_back(comm):
    node = made(comm)
    kept = [node.register(100) for _ in range(3)]
    before = set(node._registered)
    if comm.rank == 0:
        kept[1] = None  # still held by rank 1
    again = node.register(100)
    assert set(node._registered) == before | {4} and len(node.maps) >= 5
    kept[1] = None
    other = node.register(200)
    assert node.find(address_of(other), 200)[0] == 2
    del again, other
    kept.clear()
    node.close()


@pytest.mark.ranks(2)
def test_two_calls_have_regions_of_their_own_and_nobody_is_lost(comm):
    node = made(comm)
    assert node.lost() == []
    for index in (0, 1):
        table = node.table(index, 640)
        assert table[[layout.SIZE, layout.RANK, layout.SCRATCH]].tolist() == [2, comm.rank, 640]
        for rank in (0, 1):
            assert address_of(node.region(rank, index)) == table[layout.REGIONS + rank]
    assert node.region(0, 0).size == layout.REGION_BYTES
    comm.Barrier()
    node.close()


@pytest.mark.ranks(3)
def test_memory_stays_registered_among_those_that_are_left(comm):
    with Communicator(comm) as everyone:
        if everyone._node is None:
            pytest.skip("no shared memory here")
        private, kept = everyone.empty(10), everyone.empty(200_000)
        left = comm.Split(comm.rank == 0, comm.rank)
        if comm.rank:
            with Communicator(left) as some:
                more = some.empty(8)
                some.adopt(everyone)
                assert [some._node.find(address_of(each), each.nbytes)[0] for each in (more, private, kept)] == [
                    1,
                    2,
                    3,
                ]
                kept[:] = np.arange(len(kept)) * comm.rank
                call = some.Allreduce_init(MPI.IN_PLACE, kept)
                call.run()
                np.testing.assert_array_equal(kept, np.arange(len(kept)) * 3.0)
                call.Free()
                del more
        left.Free()
        comm.Barrier()
        del private, kept
