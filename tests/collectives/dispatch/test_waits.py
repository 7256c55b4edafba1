"""Ranks that wait in calls that never meet: one error on all of them, whatever each waits for."""

import contextlib
import itertools
import time

import numpy as np
import pytest
from harness.oracle import check, communicator, same_error, two_nodes
from mpi4py import MPI

from psgd.collectives.dispatch import stalls
from psgd.kernels.errors import ContractError, Error, UsageError


@contextlib.contextmanager
def soon(seconds=0.1):
    """Ranks compare what they wait in after so long."""
    before, stalls._COMPARE_S = stalls._COMPARE_S, seconds
    try:
        yield
    finally:
        stalls._COMPARE_S = before


def usual(c):
    c.Allreduce(np.ones(100), np.zeros(100))


def started(c):
    c.Iallreduce(np.ones(100), np.zeros(100)).Wait()


def persistent(c):
    request = c.Allreduce_init(np.ones(100), np.zeros(100))
    request.run()


OTHERS = {
    "Allgather": lambda c: c.Allgather(np.ones(5), np.zeros(5 * c.size)),
    "Allgatherv": lambda c: c.Allgatherv(np.ones(5), np.zeros(5 * c.size)),
    "Barrier": lambda c: c.Barrier(),
    "Bcast": lambda c: (c.Bcast(np.ones(100), 0), c.Barrier()),  # the root may be done with the first
    "Bcast of itself": lambda c: (c.Bcast(np.ones(100), c.rank), c.Barrier()),
    "Reduce": lambda c: c.Reduce(np.ones(100), np.zeros(100), root=c.size - 1),
    "ring": lambda c: c.Allreduce(np.ones(100), np.zeros(100), algorithm="ring"),
    "native": lambda c: c.Allreduce(np.ones(100), np.zeros(100), algorithm="native"),
    "MPI's operation": lambda c: c.Allreduce(np.ones(100, int), np.zeros(100, int), MPI.BOR),
    "length": lambda c: c.Allreduce(np.ones(101), np.zeros(101)),
    "dtype": lambda c: c.Allreduce(np.ones(100, "f4"), np.zeros(100, "f4")),
    "empty": lambda c: c.empty(100),
    "a request": started,
    "a persistent request": persistent,
}


@pytest.mark.ranks(4, timeout=20)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("odd", [0, 3])
@soon()
def test_on_several_nodes_another_call_on_one_rank_is_one_error(comm, other, odd):
    with two_nodes():
        c = communicator(comm).__enter__()
    assert c.nodes == 2 and c._node is not None
    usual(c)
    same_error(comm, lambda: (OTHERS[other] if comm.rank == odd else usual)(c), ContractError, f"rank {odd}", within=8)


@pytest.mark.ranks(3, timeout=20)
@pytest.mark.parametrize(
    "pair", list(itertools.combinations(["Bcast", "native", "ring", "Barrier", "a request"], 2)), ids=str
)
@soon()
def test_over_messages_too(comm, pair):
    c = communicator(comm, PSGD_SHARED="0").__enter__()
    same_error(comm, lambda: OTHERS[pair[comm.rank == 1]](c), ContractError, "rank 1", within=8)


@pytest.mark.ranks(2, 3, timeout=20)
@pytest.mark.parametrize("variables", [{}, {"PSGD_SHARED": "0"}, {"PSGD_CHECK": "1"}, {"PSGD_PROGRESS": "1"}], ids=str)
@pytest.mark.parametrize("other", ["a request", "a persistent request"])
@soon()
@pytest.mark.both_mpis_whole
def test_a_blocking_call_against_a_request_is_one_error_and_the_end(comm, variables, other):
    c = communicator(comm, **variables).__enter__()
    for _ in range(3):
        usual(c)
    started(c)
    call = usual if comm.rank == comm.size - 1 else OTHERS[other]
    text = same_error(comm, lambda: call(c), ContractError, f"rank {comm.size - 1} Allreduce", "non-blocking", within=8)
    assert text.count("non-blocking") == 1
    same_error(comm, lambda: usual(c), ContractError, "cannot be used any more")
    same_error(comm, lambda: started(c), ContractError, "cannot be used any more")


@pytest.mark.ranks(2, timeout=20)
@pytest.mark.parametrize("shared", ["1", "0"])
@soon()
def test_a_long_wait_for_a_rank_that_comes_late_is_no_error(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        request = c.Iallreduce(np.ones(100), np.zeros(100))
        if comm.rank:
            time.sleep(0.3)
        check(c, "Allreduce", 1000, "float64")  # beside a request that is under way
        if comm.rank:
            time.sleep(0.3)
        request.Wait()
        if comm.rank:
            time.sleep(0.3)
        check(c, "Bcast", 1000, "float64")


@pytest.mark.ranks(3, timeout=20)
@soon()
def test_who_is_ahead_knows_what_it_passed_before(comm):
    """A broadcast's root is not held up by others that wait in another call: it hears of them in a later one."""
    c = communicator(comm, PSGD_SHARED="0").__enter__()

    def calls():
        if comm.rank == 0:
            for _ in range(5):
                c.Bcast(np.ones(3), 0, algorithm="chain")
            c.Barrier()
        else:
            c.Allreduce(np.ones(3), np.zeros(3))

    same_error(comm, calls, ContractError, "rank 0 Bcast", "ranks 1-2 Allreduce", within=8)


ALSO = {
    "usual": usual,
    "a request": started,
    "a persistent request": persistent,
    "a wrong name": lambda c: c.Allreduce(np.ones(100), np.zeros(100), algorithm="quick"),
    "a request too short": lambda c: c.Iallreduce(np.ones(100), np.zeros(99)).Wait(),
}


@pytest.mark.ranks(3, timeout=20)
@pytest.mark.parametrize(
    ("odd", "others", "names"),
    [
        ("a wrong name", "a request", ["rank 1", "quick"]),
        ("a wrong name", "a persistent request", ["rank 1", "quick"]),
        ("a request too short", "usual", ["rank 1", "99"]),
        ("a request too short", "a wrong name", ["rank 1", "99", "quick"]),
    ],
)
@soon()
def test_a_wrong_argument_of_a_blocking_call_ends_requests_of_others_and_the_reverse(comm, odd, others, names):
    c = communicator(comm, PSGD_SHARED="0").__enter__()
    usual(c)
    started(c)
    same_error(comm, lambda: ALSO[odd if comm.rank == 1 else others](c), UsageError, *names, within=8)
    same_error(comm, lambda: usual(c), ContractError, "cannot be used any more")
    same_error(comm, lambda: started(c), ContractError, "cannot be used any more")


@pytest.mark.ranks(4, timeout=20)
@pytest.mark.parametrize("second", ["usual", "a request"])
@pytest.mark.parametrize("odd", ["a wrong name", "a request", "a request too short", "ring", "length"])
@soon()
def test_who_is_still_in_the_call_before_ends_that_call_first(comm, odd, second):
    """Rank 3 waits for rank 2 in the first call, while ranks 0 and 1 fail in the second."""
    c = communicator(comm, PSGD_SHARED="0").__enter__()
    data = np.full(10, float(comm.rank))
    if comm.rank == 2:
        time.sleep(0.5)
    c.Bcast(data, 0, algorithm="chain")
    assert not data.any()
    call = {**OTHERS, **ALSO}[odd if comm.rank == 0 else second]
    if odd == second:
        call = usual if comm.rank == 0 else started
    same_error(comm, lambda: call(c), Error, within=8)


@pytest.mark.ranks(2, 3, timeout=20)
@pytest.mark.parametrize("shared", ["0", "1"])
@pytest.mark.parametrize("wrong", ["ring", "length", "native"])
@soon()
def test_who_is_done_with_a_call_that_others_fail_in_hears_of_it_in_a_request(comm, wrong, shared):
    """A broadcast's root goes on at once, and then waits for a request that nobody else comes to."""
    c = communicator(comm, PSGD_SHARED=shared).__enter__()

    def calls():
        if comm.rank == 0:
            c.Bcast(np.ones(1), 0)
            started(c)
        else:
            OTHERS[wrong](c)

    same_error(comm, calls, ContractError, "rank 0", within=8)


@pytest.mark.ranks(2, 3, timeout=20)
def test_a_rank_that_is_ahead_by_a_call_is_seen_where_all_descriptors_are_compared(comm):
    """Else MPI would carry out the call, and a message of the broadcast would be taken for one of a later call."""
    c = communicator(comm, PSGD_SHARED="0").__enter__()

    def calls():
        if comm.rank == 0:
            c.Bcast(np.ones(3), 0)
        OTHERS["native"](c)

    same_error(comm, calls, ContractError, "rank 0 Bcast(float64, 3 elements", "Allreduce", within=2)


@pytest.mark.ranks(3, timeout=20)
@soon(0.05)
def test_who_waits_for_a_late_rank_while_all_descriptors_are_exchanged_does_not_give_up(comm):
    """The exchange tells all ranks of the difference: who failed before would take no part in what follows."""
    with communicator(comm, PSGD_SHARED="0") as c:
        if comm.rank == 2:
            time.sleep(0.4)
        n = 100 + comm.rank // 2 + (comm.rank == 1)
        call = lambda: c.Allreduce(np.ones(n), np.zeros(n), algorithm="native")  # noqa: E731
        same_error(comm, call, ContractError, "rank 0", "100 elements", "ranks 1-2", "101 elements", within=2)
        check(c, "Allreduce", 1000, "float64")
        check(c, "Bcast", 1000, "float64")
