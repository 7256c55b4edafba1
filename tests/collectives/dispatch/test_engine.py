"""One sequence of calls: counted, reported, and refused once it is broken or freed."""

import numpy as np
import pytest
from harness.oracle import communicator, same_error
from mpi4py import MPI

from psgd.kernels.errors import ContractError


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shared", ["0", "1"])
def test_calls_are_counted_and_tell_their_way(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        engine, before = c._engine, c._engine.calls
        x, y = np.ones(3), np.zeros(3)
        for k in range(3):
            c.Allreduce(x, y, algorithm="native")
            assert engine.calls == before + k + 1 and engine.last == ("native", "mpi")
        assert engine.one_node and engine.blocking and not c._queue.engine.blocking
        assert engine.local == (engine.shared is not None)


@pytest.mark.ranks(2)
def test_an_error_of_an_algorithm_that_no_rank_expected_breaks_it(comm):
    with communicator(comm) as c:
        engine = c._engine

        def steps():
            yield lambda: True
            raise KeyError("boom")

        with pytest.raises(KeyError, match="boom"):
            engine.run(steps())
        assert "KeyError" in engine.failures.broken
        with pytest.raises(ContractError, match="this communicator cannot be used any more"):
            engine.begin()
        comm.Barrier()


@pytest.mark.ranks(3)
def test_with_checks_wrong_arguments_are_compared_by_messages(comm):
    with communicator(comm, PSGD_CHECK="1") as c:
        assert c._engine.checks
        size = 5 + (comm.rank == 1)
        same_error(comm, lambda: c.Allreduce(np.ones(size), np.zeros(size)), ContractError, "rank 1", "6 elements")
        y = np.zeros(5)
        c.Allreduce(np.ones(5), y, MPI.SUM)
        assert (y == 3).all()


@pytest.mark.ranks(2)
def test_a_freed_one_is_refused(comm):
    with communicator(comm) as c:
        engine = c._engine
        c.Barrier()
    engine.free()  # a second time does nothing
    with pytest.raises(ContractError, match="it was freed"):
        engine.begin()
