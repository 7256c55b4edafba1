"""Communicators beside others, with many open files, interrupted, tuned, and their memory."""

import json
import os

import numpy as np
import pytest
from harness.oracle import check, communicator
from mpi4py import MPI

from psgd import collectives
from psgd.kernels.errors import UsageError


@pytest.mark.ranks(2, 5)
@pytest.mark.parametrize("shared", ["1", "0"])
def test_halves_at_once_and_the_callers_own_messages(comm, shared):
    token, mail = np.full(1, comm.rank), np.full(1, -1)
    early = comm.Irecv(mail, MPI.ANY_SOURCE, MPI.ANY_TAG)
    part = comm.Split(comm.rank % 2, comm.rank)
    with communicator(comm, PSGD_SHARED=shared) as whole, communicator(part, PSGD_SHARED=shared) as half:
        for n in (3, 100, 600, 20_000, 100_003):
            check(half, "Allreduce", n + 11 * (comm.rank % 2), "float64")
            check(whole, "Allreduce", n, "float64")
            assert comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG) is False
        assert not early.Test()
        comm.Barrier()
        comm.Isend(token, (comm.rank + 1) % comm.size, 5).Wait()
        early.Wait()
        assert mail[0] == (comm.rank - 1) % comm.size
    part.Free()


@pytest.mark.ranks(2)
def test_a_large_message_of_the_callers_gets_through(comm):
    with communicator(comm) as c:
        data, one = np.full(2**20, 7.0), np.ones(1)
        if comm.rank == 0:
            request = comm.Isend(data, 1, 3)
            c.Allreduce(MPI.IN_PLACE, one)
            request.Wait()
        else:
            came = np.zeros(2**20)
            comm.Recv(came, 0, 3)
            c.Allreduce(MPI.IN_PLACE, one)
            assert (came == 7).all()


@pytest.mark.ranks(2)
def test_thousands_of_calls(comm):
    with communicator(comm) as c, communicator(comm, PSGD_SHARED="0") as plain:
        x = np.empty(4)
        for i in range(3000):
            x[:] = i + comm.rank
            (plain if i % 10 == 0 else c).Allreduce(MPI.IN_PLACE, x)
            assert x[0] == 2 * i + 1


@pytest.mark.ranks(2)
def test_registered_memory_goes_and_comes(comm):
    def mappings():
        with open("/proc/self/maps") as file:
            return sum("memfd:psgd" in line for line in file)

    with communicator(comm) as c:
        before, files = mappings(), len(os.listdir("/proc/self/fd"))
        for i in range(200):
            a = c.empty(50_000)
            a[:] = i + comm.rank
            c.Allreduce(MPI.IN_PLACE, a)
            assert c.last == ("direct", "registered")
            assert (a == 2 * i + 1).all()
        part, ours = a[1000:41_000], c.empty(40_000)
        part[:] = comm.rank
        c.Allreduce(part, ours)
        assert c.last == ("direct", "registered") and (ours == 1).all()
        mixed = ours if comm.rank == 0 else np.zeros(40_000)
        c.Allreduce(part, mixed)
        assert (mixed == 1).all() and (a[:1000] == 399).all()
        assert mappings() - before <= 12
        assert len(os.listdir("/proc/self/fd")) <= files + 10


@pytest.mark.ranks(2)
def test_create_and_free_leaves_nothing(comm):
    communicator(comm).__enter__().free()
    with open("/proc/self/maps") as file:
        before = len(file.readlines())
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        c = collectives.Communicator(comm)
        c.Barrier()
        c.free()
    with open("/proc/self/maps") as file:
        assert len(file.readlines()) <= before + 20
    assert len(os.listdir("/proc/self/fd")) <= files


@pytest.mark.ranks(2)
def test_delegation_and_use_after_free(comm):
    with communicator(comm) as c:
        assert c.Get_rank() == comm.rank and c.bcast("x" if comm.rank == 0 else None) == "x"
        c.Split(0, 0).Free()
    for call in (c.Barrier, lambda: c.Allreduce(np.ones(1), np.ones(1)), lambda: c.empty(3)):
        with pytest.raises(UsageError, match="freed"):
            call()
    c.free()


@pytest.mark.ranks(2)
def test_a_long_wait_with_many_or_no_more_files(comm):
    """WaitLog look at the other processes through file descriptors; the program's own files must not disturb that."""
    import resource
    import time

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1300:
        pytest.skip("needs 1300 open files")
    x = np.ones(3)
    with communicator(comm) as many:
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
        try:
            time.sleep(0.5 * (comm.rank == 0))
            many.Allreduce(MPI.IN_PLACE, x)
        finally:
            for file in files:
                os.close(file)
    with communicator(comm) as none:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
        try:
            time.sleep(0.5 * (comm.rank == 0))
            none.Allreduce(MPI.IN_PLACE, x)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (x == 4).all()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize("name", ["hierarchical", "slots", "chain"])
def test_a_table_that_names_what_there_is_not_here_falls_back(comm, tmp_path, shared, name):
    file = tmp_path / "table.json"
    if comm.rank == 0:
        entry = {"collective": "Allreduce", "ranks": comm.size, "nodes": 1, "limits": [[64, "inline"], [None, name]]}
        file.write_text(json.dumps({"format": 1, "entries": [entry]}))
    comm.Barrier()
    with communicator(comm, PSGD_SHARED=shared, PSGD_TUNING=str(file)) as c:
        check(c, "Allreduce", 5000, "float64")
        known = {"inline", "slots", "direct"} if shared == "1" else {"ring", "recursive_doubling", "rabenseifner"}
        assert c.last[0] in known, c.last


@pytest.mark.parametrize("shared", ["1", "0"])
def test_an_interrupted_rank_is_a_lost_peer_to_the_others(job, shared):
    result = job(
        3,
        """
import signal, time
import numpy as np
from mpi4py import MPI
from psgd import collectives
from psgd.kernels.errors import PeerLostError
world = MPI.COMM_WORLD
c = collectives.Communicator(world)
x = np.ones(100_000)
c.Allreduce(np.ones(100_000), x)
if world.rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
if world.rank == 2:
    time.sleep(1)
try:
    c.Allreduce(np.ones(100_000), x)
    said = "nothing"
except BaseException as error:
    said = type(error).__name__
print(world.gather(said), flush=True)
""",
        env={"PSGD_SHARED": shared},
    )
    assert "['KeyboardInterrupt', 'PeerLostError', 'PeerLostError']" in result.stdout
