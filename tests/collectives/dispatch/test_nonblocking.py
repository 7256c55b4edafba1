"""Non-blocking collectives: several at once, dropped, with temporaries, and errors from Test and Wait."""

import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from harness.channel import values
from harness.oracle import communicator, same_error

from psgd.kernels.errors import ContractError, UsageError

WAYS = pytest.mark.parametrize("shared", ["1", "0"])


def total(size, n):
    return sum(values(rank, n, "float64") for rank in range(size))


@WAYS
@pytest.mark.ranks(1, 2, 3, 5)
def test_several_pending_and_waited_in_another_order_on_each_rank(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        lengths = [0, 1, 7, 1000, 9000, 100_003]
        mine = [values(comm.rank, n, "float64") for n in lengths]
        results = [np.full(n, -1.0) for n in lengths]
        requests = [c.Iallreduce(a, b) for a, b in zip(mine, results, strict=True)]
        blocks, everyone = np.full(5, comm.rank), np.zeros(5 * comm.size, int)
        requests.append(c.Iallgather(blocks, everyone))
        block = np.zeros(3)
        requests.append(c.Ireduce_scatter_block(values(comm.rank, 3 * comm.size, "float64"), block))
        between = np.ones(4)
        c.Allreduce(np.ones(4), between)  # a blocking call in between is no hindrance
        assert (between == comm.size).all()
        for i in np.random.default_rng(comm.rank).permutation(len(requests)):
            if i % 2:
                requests[i].Wait()
            else:
                while not requests[i].Test():
                    pass
        for n, a, b in zip(lengths, mine, results, strict=True):
            assert np.array_equal(b, total(comm.size, n))
            assert np.array_equal(a, values(comm.rank, n, "float64"))
        assert np.array_equal(everyone, np.repeat(np.arange(comm.size), 5))
        assert np.array_equal(block, total(comm.size, 3 * comm.size)[3 * comm.rank :][:3])


@WAYS
@pytest.mark.ranks(2, 3)
def test_temporaries_live_as_long_as_they_are_needed(comm, shared):
    with communicator(comm, PSGD_SHARED=shared) as c:
        recv = np.zeros(100_003)
        request = c.Iallreduce(values(comm.rank, 100_003, "float64") * 1.0, recv)
        rubbish = [np.full(100_003, np.nan) for _ in range(8)]
        request.Wait()
        assert np.array_equal(recv, total(comm.size, 100_003))
        del rubbish
        c.Iallreduce(np.ones(9000) * 1.0, np.ones(9000) * 1.0)  # nobody keeps request or buffers
        last = np.zeros(3)
        c.Iallreduce(np.ones(3), last).Wait()
        assert (last == comm.size).all()


@WAYS
@pytest.mark.ranks(2, 3, timeout=10)
def test_free_waits_for_what_is_pending(comm, shared):
    made = communicator(comm, PSGD_SHARED=shared).__enter__()
    lengths = [5, 100_003, 1000]
    results = [np.zeros(n) for n in lengths]
    requests = []
    for n, recv in zip(lengths, results, strict=True):
        time.sleep(0.02 * comm.rank)
        requests.append(made.Iallreduce(values(comm.rank, n, "float64"), recv))
    made.free()
    for n, recv, request in zip(lengths, results, requests, strict=True):
        assert np.array_equal(recv, total(comm.size, n))
        assert request.Test() and request.Wait()
    with pytest.raises(UsageError, match="freed"):
        made.Iallreduce(np.ones(1), np.ones(1))


@WAYS
@pytest.mark.ranks(3)
@pytest.mark.parametrize("attempt", range(8))
def test_a_mismatch_is_the_same_error_from_wait(comm, shared, attempt):
    """Repeated: what a rank hears from the others may come at any moment of its wait."""
    c = communicator(comm, PSGD_SHARED=shared).__enter__()
    n = 100 + (comm.rank == 1)
    comm.Barrier()
    time.sleep(0.0005 * attempt * (comm.rank != 2))
    same_error(comm, lambda: c.Iallreduce(np.ones(n), np.ones(n)).Wait(), ContractError, "rank 1", "101")


@pytest.mark.ranks(2, timeout=10)
def test_starting_an_operation_of_mpi_does_not_block(comm):
    from mpi4py import MPI

    with communicator(comm, PSGD_SHARED="0") as c:
        bits, token = np.array([comm.rank + 1]), np.zeros(1)
        if comm.rank == 0:
            request = c.Iallreduce(MPI.IN_PLACE, bits, MPI.BOR)
            comm.Send(token, 1)
        else:
            comm.Recv(token, 0)
            request = c.Iallreduce(MPI.IN_PLACE, bits, MPI.BOR)
        request.Wait()
        assert bits[0] == 3


class Vanishing(deque):
    """Requests that another thread, whose turn it is, takes out as soon as somebody has seen that there are some."""

    def __bool__(self):
        found = len(self) > 0
        self.clear()
        return found

    def __len__(self):
        found = super().__len__()
        self.clear()
        return found


@pytest.mark.parametrize("look", [lambda queue, request: queue.advance_one(request), lambda queue, _: queue.relieve()])
def test_a_request_that_another_thread_ends_meanwhile_is_no_error(look, monkeypatch):
    from psgd.collectives.dispatch import nonblocking

    monkeypatch.setattr(nonblocking.MPI, "Query_thread", lambda: nonblocking.MPI.THREAD_SERIALIZED)
    queue = nonblocking.RequestQueue(
        SimpleNamespace(size=1, waiter=SimpleNamespace(crowded=False), watchdog=SimpleNamespace()), False
    )
    request = nonblocking.Request(queue, iter(()), lambda: False, in_memory=True)
    queue._pending = Vanishing([request])
    queue._turn.acquire()
    assert not look(queue, request)
