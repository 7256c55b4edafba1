"""The thread that carries on requests of a rank that is inside an MPI call of its own."""

import threading
import time

import numpy as np
import pytest
from harness.oracle import communicator
from mpi4py import MPI

from psgd.collectives.dispatch.relief import Relief


class Queue:
    """Busy for a number of turns."""

    def __init__(self, turns):
        self.turns, self.untouched, self.threads = turns, False, set()

    @property
    def busy(self):
        return self.turns > 0

    def relieve(self):
        self.turns -= 1
        self.threads.add(threading.current_thread().name)


def until(condition, seconds=5.0):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.001)
    return condition()


def test_it_takes_over_what_nobody_advances_and_falls_asleep_again():
    relief, one, other = Relief(), Queue(40), Queue(3)
    assert relief.asleep
    relief.add(one), relief.add(other)
    time.sleep(0.05)
    assert one.turns == 40  # not woken
    relief.wake()
    assert until(lambda: not one.busy and not other.busy)
    assert one.threads == other.threads == {"psgd-relief"}
    assert until(lambda: relief.asleep)
    one.turns, one.untouched = 2, False
    relief.wake()
    assert until(lambda: not one.busy)
    relief._end()
    assert not relief._thread.is_alive()


@pytest.mark.alone
def test_it_leaves_alone_what_somebody_advances():
    relief, tested, beside = Relief(), Queue(1000), Queue(1000)
    relief.add(tested), relief.add(beside)
    relief.wake()
    limit = time.monotonic() + 0.2
    while time.monotonic() < limit:
        tested.untouched = False  # as a test of it does; that advances the other as well
        time.sleep(0.001)
    relief._end()
    assert tested.turns > 950 and beside.turns > 950


def test_it_keeps_no_queue_alive():
    relief, one = Relief(), Queue(0)
    relief.add(one)
    relief.wake()
    assert until(lambda: not relief.asleep) and len(relief._all()) == 1
    del one
    assert until(lambda: len(relief._all()) == 0)
    relief._end()


def inside_mpi(comm, way, request):
    """Rank 0 is in a call of MPI's that ends once the last rank's request is done."""
    last, token = comm.size - 1, np.zeros(1)
    if comm.rank not in (0, last) and way != "Barrier":
        request.Wait()
    elif comm.rank:
        time.sleep(0.05)
        request.Wait()
        if way == "Barrier":
            comm.Barrier()
        else:
            comm.Ssend(token, 0)
    elif way == "Barrier":
        comm.Barrier()
    elif way == "Recv":
        comm.Recv(token, last)
    else:
        MPI.Request.Waitall([comm.Irecv(token, last)])
    request.Wait()


@pytest.mark.ranks(2, 3, timeout=20)
@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize("way", ["Barrier", "Recv", "Waitall"])
def test_an_mpi_call_between_start_and_wait_ends(comm, shared, way):
    with communicator(comm, PSGD_SHARED=shared, PSGD_PROGRESS="0") as c:
        assert not c.threaded
        for n in (10, 20_000, 400_000):  # inline, slots, direct; and by messages
            x, y, z = np.full(n, comm.rank + 1.0), np.zeros(n), np.zeros(n * comm.size)
            inside_mpi(comm, way, c.Iallreduce(x, y))
            assert (y == comm.size * (comm.size + 1) / 2).all()
            inside_mpi(comm, way, c.Iallgather(x, z))
            assert (z.reshape(comm.size, n) == np.arange(1, comm.size + 1)[:, None]).all()
            with c.Allreduce_init(x, y) as request:
                for _ in range(2):
                    y[:] = 0
                    request.Start()
                    inside_mpi(comm, way, request)
                    assert (y == comm.size * (comm.size + 1) / 2).all()


@pytest.mark.ranks(2, timeout=20)
def test_requests_of_two_communicators_and_half_of_the_ranks(comm):
    half = comm.Split(0, comm.rank)
    with communicator(comm, PSGD_PROGRESS="0") as a, communicator(half, PSGD_PROGRESS="0", PSGD_SHARED="0") as b:
        x, y, z = np.full(300_000, comm.rank + 1.0), np.zeros(300_000), np.zeros(300_000)
        first, second = (a.Iallreduce(x, y), b.Iallreduce(x, z))
        inside_mpi(comm, "Recv", second if comm.rank else first)
        first.Wait(), second.Wait()
        assert (y == 3).all() and (z == 3).all()
    half.Free()


FUNNELED = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
import time
import numpy as np
from mpi4py import MPI
from psgd import collectives
world = MPI.COMM_WORLD
with collectives.Communicator(world) as c:
    for n in (20_000, 400_000):
        x, y = np.ones(n), np.zeros(n)
        request = c.Iallreduce(x, y)
        if world.rank == 0:
            world.Recv(np.zeros(1), 1)
            request.Wait()
        else:
            request.Wait()
            world.Ssend(np.zeros(1), 0)
        assert (y == 2).all()
print(MPI.Query_thread(), "done", flush=True)
"""


def test_in_shared_memory_mpi_need_not_be_called_by_threads(job):
    result = job(2, FUNNELED, check=True)
    assert result.stdout.count("done") == 2
