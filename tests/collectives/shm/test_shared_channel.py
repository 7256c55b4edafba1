"""One sequence of calls in shared memory: who is behind, who gave up, and what is wrong with whose arguments."""

import os

import numpy as np
import pytest

from psgd.collectives.algorithms import intranode
from psgd.collectives.arguments import descriptor
from psgd.collectives.shm.registered import Node
from psgd.collectives.shm.shared_channel import SharedChannel


class DifferError(Exception):
    pass


def made(comm):
    node = Node.create(comm, list(range(comm.size)))
    if node is None:
        pytest.skip("no shared memory here")
    return SharedChannel(node, 0, 100, DifferError)


def drive(steps):
    for test in steps:
        while not test():
            os.sched_yield()


@pytest.mark.ranks(2, 3)
def test_who_has_not_come_is_behind(comm):
    channel = made(comm)
    descriptor.fill(channel.descriptor, 1, 5, (), 0)
    last = comm.size - 1
    if comm.rank < last:
        steps = intranode.agree(channel)
        test = next(steps)
        assert not test() and channel.in_call
    comm.Barrier()
    if comm.rank < last:
        assert channel.behind() == [last]
    comm.Barrier()
    if comm.rank < last:
        while not test():
            os.sched_yield()
        drive(steps)
    else:
        drive(intranode.agree(channel))
    comm.Barrier()
    assert channel.behind() == [] and not channel.in_call and channel.aborted() == -1
    comm.Barrier()
    channel.node.close()


@pytest.mark.ranks(3)
def test_an_error_in_the_arguments_reaches_all(comm):
    channel = made(comm)
    descriptor.fill(channel.descriptor, 1, 5, (), 0)
    if comm.rank == 1:
        channel.report("sendbuf: what is wrong with it")
    with pytest.raises(DifferError):
        drive(intranode.agree(channel))
    descriptors, texts = channel.descriptors()
    assert texts == ["", "sendbuf: what is wrong with it", ""] and len(descriptors) == 3
    comm.Barrier()
    channel.node.close()


@pytest.mark.ranks(3)
def test_a_rank_that_gave_up_is_named(comm):
    channel = made(comm)
    if comm.rank == 2:
        channel.abort()
    comm.Barrier()
    assert channel.aborted() == 2
    assert channel.left(patient=True) == ([] if comm.rank == 2 else [2])
    comm.Barrier()
    channel.node.close()


@pytest.mark.ranks(3)
def test_a_rank_that_gave_up_in_a_later_call_has_not_left_this_one(comm):
    channel = made(comm)
    drive(intranode.agree(channel))
    comm.Barrier()
    if comm.rank == 2:  # is ahead, and has done its part in the call that it leaves
        next(intranode.agree(channel))
        channel.abort()
    comm.Barrier()
    assert channel.left(patient=True) == []
    assert channel.left(patient=False) == ([] if comm.rank == 2 else [2])
    if comm.rank == 0:
        steps = intranode.agree(channel)
        test = next(steps)
        assert channel.in_call and channel.aborted() == 2 and channel.left(patient=True) == []
    comm.Barrier()
    if comm.rank == 1:
        drive(intranode.agree(channel))
    comm.Barrier()
    if comm.rank == 0:
        assert test()
        drive(steps)
        next(intranode.agree(channel))  # the one that rank 2 does not come to
        assert channel.left(patient=True) == [2]
    comm.Barrier()
    channel.node.close()


@pytest.mark.ranks(2)
def test_scratch_memory_is_kept_and_grows(comm):
    channel = made(comm)
    first = channel.scratch(100, np.float64)
    assert first.size == 100 and np.shares_memory(first, channel.scratch(50, np.float32))
    assert channel.scratch(1000, np.float64).size == 1000
    comm.Barrier()
    channel.node.close()
