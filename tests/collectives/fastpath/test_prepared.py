"""A call whose words are written once: turns of the kernel, and what moves it; `test_persistent.py` has all verbs."""

import numpy as np
import pytest
from harness.oracle import communicator
from mpi4py import MPI

from psgd.collectives.arguments import parse
from psgd.collectives.fastpath.prepared import PreparedCall
from psgd.collectives.shm import layout


def prepared(c, x, y, algorithm=None):
    if not c._engine.local:
        pytest.skip("no shared memory here")
    plan = c._planner.plan("Allreduce", lambda: parse.allreduce(c.size, c.rank, x, y, MPI.SUM), algorithm, None)
    assert plan.repeats(c._engine)
    return PreparedCall(c._engine, plan)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("n", "algorithm", "one_turn"),
    [(9, "inline", True), (900, "chunked", False), (9000, "slots", False), (9000, "direct", False)],
)
def test_it_reads_the_buffers_as_they_are_at_each_run(comm, n, algorithm, one_turn):
    with communicator(comm) as c:
        x, y = np.zeros(n), np.zeros(n)
        call = prepared(c, x, y, algorithm)
        assert call.one_turn == one_turn and call.current
        before = c._engine.calls
        for k in range(4):
            x[:] = comm.rank + k
            call.run()
            np.testing.assert_array_equal(y, sum(range(comm.size)) + comm.size * k)
        assert c._engine.calls == before + 4


@pytest.mark.ranks(2)
def test_a_turn_does_not_wait_and_a_later_one_ends_it(comm):
    with communicator(comm) as c:
        x, y = np.full(5, comm.rank + 1.0), np.zeros(5)
        call = prepared(c, x, y, "inline")
        comm.Barrier()
        if comm.rank == 0:
            assert call.begin(0) == layout.WAIT and not call.look()
        comm.Barrier()
        if comm.rank == 1:
            assert call.begin(0) == layout.DONE
        comm.Barrier()
        if comm.rank == 0:
            assert call.look()
            assert list(call.after()) == []
        np.testing.assert_array_equal(y, 3.0)


@pytest.mark.ranks(2)
def test_registered_memory_that_came_later_is_noticed(comm):
    with communicator(comm) as c:
        x, y = np.ones(5), np.zeros(5)
        call = prepared(c, x, y)
        kept = [c.empty(100, "float64") for _ in range(6)]  # its table grows, and moves
        assert not call.current
        call.run()
        assert call.current and (y == 2).all()
        kept.clear()
