"""The kernel of a call takes turns: it never blocks, keeps its place, and tells how it ended."""

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.arguments import descriptor
from psgd.collectives.communicator import Communicator
from psgd.collectives.mpi.node import address_of
from psgd.collectives.shm import layout
from psgd.collectives.shm.call_kernel import prepare, run
from psgd.collectives.shm.registered import Node
from psgd.kernels import reduce


def addresses(node, block):
    table, state = node.table(0, 0), np.zeros(layout.STATE_WORDS, np.int64)
    where = np.zeros((node.size, layout.WHERE_WORDS), np.int64)
    kept = table, state, block, node.maps, where
    return [address_of(each) for each in kept], kept


def meeting(count):
    block = np.zeros(layout.CALL_WORDS, np.int64)
    descriptor.fill(block[: layout.DESCRIPTOR_WORDS], 1, count, (), 0)
    block[layout.METHOD], block[layout.ITEM] = layout.AGREE, 1
    return block


@pytest.mark.ranks(2, 3)
def test_it_waits_for_the_last_and_begins_anew(comm):
    node = Node.create(comm, list(range(comm.size)))
    if node is None:
        pytest.skip("no shared memory here")
    last = comm.size - 1
    block = meeting(7)
    places, kept = addresses(node, block)
    for turn in range(3):
        if comm.rank < last:
            assert [run(*places, False, 0) for _ in range(3)] == [layout.WAIT] * 3
        comm.Barrier()
        if comm.rank == last:
            assert run(*places, False, 0) == layout.DONE, "the others have come already"
        comm.Barrier()
        if comm.rank < last:
            assert run(*places, False, 0) == layout.DONE
        assert kept[1][layout.CALLS] == turn + 1 and kept[1][layout.PHASE] == 0
        comm.Barrier()
    node.close()


@pytest.mark.ranks(2)
def test_descriptors_that_differ_are_a_mismatch_on_both(comm):
    node = Node.create(comm, [0, 1])
    if node is None:
        pytest.skip("no shared memory here")
    block = meeting(7 + comm.rank)
    places, kept = addresses(node, block)
    while (status := run(*places, False, 100)) == layout.WAIT:
        pass
    assert status == layout.MISMATCH
    comm.Barrier()
    descriptor.fill(block[: layout.DESCRIPTOR_WORDS], 1, 7, (), 0)
    while (status := run(*places, False, 100)) == layout.WAIT:
        pass
    assert status == layout.DONE and kept[1][layout.CALLS] == 2
    comm.Barrier()
    node.close()


@pytest.mark.ranks(2)
def test_what_is_prepared_is_what_calls_need(comm):
    prepare(np.dtype(np.float32))
    made = reduce.arithmetic.cache_info().misses
    values = np.ones(3, np.float32)
    with Communicator(comm) as communicator:
        communicator.Allreduce(MPI.IN_PLACE, values)
    assert values.tolist() == [2, 2, 2]
    assert len(run.signatures) == 1 and reduce.arithmetic.cache_info().misses == made
