"""Reports between ranks: of waits, of failures, and of failures that concern both engines of a communicator."""

import time

import numpy as np
import pytest

from psgd.collectives.arguments import descriptor, operations
from psgd.collectives.dispatch.control import Control, Waiting
from psgd.collectives.shm import layout
from psgd.kernels.errors import AgreedContractError, AgreedUsageError, PeerLostError


def words(call, count=9, verb="Allreduce"):
    line = np.zeros(layout.DESCRIPTOR_WORDS, np.int64)
    descriptor.fill(line, descriptor.signature(verb, "float64", operations.SUM_), count, (count,), 0)
    line[layout.CALL] = call
    return line


def until(condition):
    limit = time.monotonic() + 5
    while not condition() and time.monotonic() < limit:
        time.sleep(1e-3)
    return condition()


def clear(comm, *controls):
    """Leaves no message to a later communicator."""
    comm.Barrier()
    limit = time.monotonic() + 0.05
    while time.monotonic() < limit:
        for control in controls:
            control.poll()
    comm.Barrier()


@pytest.mark.ranks(2, 3)
def test_waits_are_told_to_all_and_are_no_failure(comm):
    own = comm.Dup()
    control = Control(own)
    control.tell(Waiting(comm.rank % 2, words(5 + comm.rank), comm.rank == 0, 40 + comm.rank))
    others = {rank for rank in range(comm.size) if rank != comm.rank}

    def all_there():
        assert not control.poll()
        return {*control.waits[0], *control.waits[1]} == others

    assert until(all_there)
    for rank in others:
        theirs = control.waits[rank % 2][rank]
        assert (theirs.call, theirs.blocked, theirs.other_calls, theirs.lane) == (
            5 + rank,
            rank == 0,
            40 + rank,
            rank % 2,
        )
        assert np.array_equal(theirs.descriptor, words(5 + rank))
    control.drain()
    own.Free()


@pytest.mark.ranks(2, 3)
def test_nothing_that_was_told_is_left_behind(comm):
    own = comm.Dup()
    control = Control(own)
    for call in range(comm.rank * 3):
        control.tell(Waiting(0, words(call), True, 0))
    control.drain()
    assert not own.Iprobe()
    comm.Barrier()
    own.Free()


@pytest.mark.ranks(2, 3)
def test_a_failure_is_the_same_error_on_all_ranks_in_the_words_of_its_call(comm):
    own = comm.Dup()
    control, kept = Control(own), {3: words(3, 100, "Bcast")}
    control.past = kept.get
    if comm.rank == 0:  # is two calls ahead of the others
        assert until(control.poll)
        error = control.settle(words(5, 7), "")
    else:
        error = control.settle(words(3, 9), "")
    assert type(error) is AgreedContractError
    assert len(set(comm.allgather(str(error)))) == 1
    assert "rank 0 Bcast(float64, 100 elements" in str(error) and "Allreduce(float64, 9 elements" in str(error)
    clear(comm, control)
    own.Free()


@pytest.mark.ranks(2)
def test_wrong_arguments_and_ranks_that_left(comm):
    own = comm.Dup()
    control = Control(own)
    error = control.settle(words(1), "recvbuf: bad" if comm.rank else "")
    assert type(error) is AgreedUsageError and str(error) == "rank 1: recvbuf: bad"
    other = Control(own)
    comm.Barrier()
    if comm.rank:
        other.leave(words(2), "KeyError: 'x'")
    else:
        assert until(other.poll)
        error = other.settle(words(2), "")
        assert isinstance(error, PeerLostError) and "rank 1 left a call before its end: KeyError: 'x'" in str(error)
    clear(comm, other)
    own.Free()


@pytest.mark.ranks(3)
def test_a_failure_of_both_engines_reaches_all_in_either(comm):
    lanes = [comm.Dup(), comm.Dup()]
    controls = [Control(lane, i) for i, lane in enumerate(lanes)]
    controls[0].twin, controls[1].twin = controls[1], controls[0]
    mine = controls[comm.rank == 1]
    if comm.rank == 2:
        mine.crossed = True  # it found out
    else:
        assert until(mine.poll) and mine.crossed
    error = mine.settle(words(4), "")
    assert len(set(comm.allgather(str(error)))) == 1
    assert "rank 1 Allreduce(float64, 9 elements, SUM, non-blocking)" in str(error)
    assert "ranks 0, 2 Allreduce(float64, 9 elements, SUM)" in str(error)
    clear(comm, *controls)
    for lane in lanes:
        lane.Free()


@pytest.mark.ranks(2)
def test_reports_of_an_earlier_communicator_mean_nothing(comm):
    """An MPI may deliver them to a later one of the same identity."""
    own = comm.Dup()
    before, control = Control(own, 0, 1), Control(own, 0, 2)
    before.tell(Waiting(0, words(5), True, 0))
    before.leave(words(5), "long ago")
    comm.Barrier()
    control.tell(Waiting(0, words(6), True, 0))
    assert until(lambda: not control.poll() and control.waits[0])
    assert [theirs.call for theirs in control.waits[0].values()] == [6]
    clear(comm, control)
    own.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("how", ["failed", "left"])
def test_a_failure_in_a_later_call_ends_the_current_one_only_after_a_while(comm, how):
    own = comm.Dup()
    control = Control(own)
    if comm.rank and how == "left":
        control.leave(words(5), "wrong")
    elif comm.rank == 0:
        assert until(control.poll)
        assert not control.concerns(4)
        assert control.concerns(5) and control.concerns(6)
        assert until(lambda: control.concerns(4))
    if how == "failed":
        control.settle(words(5), "wrong" if comm.rank else "")
    clear(comm, control)
    own.Free()
