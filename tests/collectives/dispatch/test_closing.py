"""What the last calls of a program lead to: one error on all ranks, in `free` or at the exit."""

import time

import numpy as np
import pytest
from harness.oracle import check, communicator, same_error, two_nodes

from psgd.collectives.dispatch import closing
from psgd.kernels.errors import ContractError, UsageError


def persistent(c, n):
    """Ranks start their requests in different orders."""
    requests = {count: c.Bcast_init(np.ones(count), 0) for count in (9, 10)}
    requests[n].run()


LAST = {
    "a broadcast": (lambda c, n: c.Bcast(np.ones(n), 0), ContractError),
    "a reduction": (lambda c, n: c.Reduce(np.ones(n), np.ones(n), root=c.size - 1), ContractError),
    "a wrong argument": (lambda c, n: c.Bcast(np.ones(n), 0 if n == 9 else 99), UsageError),
    "a persistent broadcast": (persistent, ContractError),
}


def made(comm, nodes):
    if nodes == 1:
        return communicator(comm, PSGD_SHARED="0").__enter__()
    with two_nodes():
        return communicator(comm).__enter__()


@pytest.mark.ranks(3, timeout=20)
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("last", LAST)
@pytest.mark.both_mpis_whole
def test_who_is_done_with_the_last_call_hears_in_free_that_others_failed(comm, last, nodes):
    c = made(comm, nodes)
    check(c, "Bcast", 100, "float64")

    def calls():
        LAST[last][0](c, 10 if comm.rank == 1 else 9)
        c.free()

    same_error(comm, calls, LAST[last][1], "rank 1", within=3)
    c.free()
    c.free()


@pytest.mark.ranks(2, 3, timeout=20)
@pytest.mark.parametrize("nodes", [1, 2])
def test_who_frees_while_others_are_in_a_call_is_one_error(comm, nodes):
    c = made(comm, nodes)
    call = c.free if comm.rank == 0 else lambda: c.Allreduce(np.ones(9), np.ones(9))
    if c._engine._ends_alone:
        same_error(comm, call, ContractError, "rank 0 free()", "Allreduce", within=5)


@pytest.mark.ranks(3, timeout=20)
@pytest.mark.alone
def test_a_rank_that_does_not_come_holds_nobody_up_for_long(comm):
    before, closing.PATIENCE_S = closing.PATIENCE_S, 0.5
    try:
        c = made(comm, 1)
        check(c, "Bcast", 100, "float64")
        began = time.monotonic()
        if comm.rank != 1:
            c.free()
            assert 0.4 < time.monotonic() - began < 3
        comm.Barrier()
        if comm.rank == 1:  # what it sends now reaches no later communicator
            c.free()
        with made(comm, 1) as other:
            check(other, "Allreduce", 100, "float64")
    finally:
        closing.PATIENCE_S = before


EXIT = """
import numpy as np
from mpi4py import MPI
from psgd import collectives
from psgd.collectives import communicator
comm = MPI.COMM_WORLD
communicator.ranks_of_node = lambda comm: [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
c = collectives.Communicator(comm)
assert c.nodes == 2
c.Allreduce(np.ones(9), np.ones(9))
odd = comm.rank == 1
{last}
"""


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("c.Bcast(np.ones(9), 0)", ""),
        ("c.Bcast(np.ones(9 + odd), 0)", "ranks 0, 2 Bcast(float64, 9 elements, root 0), rank 1 Bcast(float64, 10"),
        ("odd or c.Allreduce(np.ones(9), np.ones(9))", "ranks 0, 2 Allreduce(float64, 9 elements, SUM), rank 1 free()"),
    ],
)
def test_at_the_exit_every_rank_says_in_what_the_ranks_disagreed(job, last, said):
    result = job(3, EXIT.replace("{last}", last), timeout=20)
    assert (result.returncode != 0) == bool(said), result.stderr
    assert result.stderr.count(f"ranks disagree on a collective call: {said}") == (3 if said else 0), result.stderr
