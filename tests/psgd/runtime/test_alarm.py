"""However one rank fails, in whatever the others are doing, all ranks end with its cause."""

import os
import threading
import time

import numpy as np
import pytest

import psgd
from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.optim.rules import Rule
from psgd.runtime.alarm import Alarm

SIZES = [10, 50_000, 1_000_000]


@pytest.mark.ranks(3)
def test_ring_and_check(comm):
    private = comm.Dup()
    alarm = Alarm(private, [rank for rank in range(3) if rank != comm.rank], cause=comm.rank)
    alarm.check()
    comm.Barrier()
    if comm.rank == 1:
        alarm.ring()
        alarm.ring()
    else:
        with pytest.raises(PeerLostError, match="worker 1 left"):
            Waiter(True, alarm.check).until(lambda: False)
        alarm.check()  # once is enough
    comm.Barrier()
    alarm.close()
    private.Free()


@pytest.mark.ranks(2)
def test_each_thread_that_looks_hears_it_once(comm):
    """A thread that carries collectives forward may look first; the one that trains must hear it all the same."""
    private = comm.Dup()
    alarm = Alarm(private, [1 - comm.rank], cause=comm.rank)
    if comm.rank == 1:
        alarm.ring()
    else:
        heard = []

        def look():
            with pytest.raises(PeerLostError, match="worker 1 left"):
                Waiter(True, alarm.check).until(lambda: False)
            alarm.check()
            heard.append(True)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(20)
        assert heard
        look()
    comm.Barrier()
    alarm.close()
    private.Free()


def everywhere(comm, loop, mine, expected, said):
    """`loop` raises `expected` on rank `mine` and PeerLostError with its cause on all others."""
    with pytest.raises(expected if comm.rank == mine else PeerLostError) as caught:
        loop()
    if comm.rank != mine:
        assert said in str(caught.value)
    comm.Barrier()


@pytest.mark.ranks(3, 5)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shared", ["0", "1"])
@pytest.mark.both_mpis_whole
def test_an_interrupt_in_the_middle_of_a_step(comm, n, shared):
    """The first worker is interrupted while it waits for the others; it can still tell them."""
    import signal

    def interrupt(number, frame):
        raise KeyboardInterrupt

    os.environ["PSGD_SHARED"] = shared
    before = signal.signal(signal.SIGALRM, interrupt)

    def loop():
        params = np.zeros(n, np.float32)
        with psgd.connect(comm, params, strategy="sync") as ps:
            ps.step()
            if ps.worker == 0:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                ps.step()
            else:
                time.sleep(0.6)
                ps.step()
                ps.step()

    try:
        everywhere(comm, loop, 1, KeyboardInterrupt, "worker 0 left psgd.connect")
    finally:
        signal.signal(signal.SIGALRM, before)
        del os.environ["PSGD_SHARED"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("strategy", ["sync", "async"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.both_mpis_whole
def test_a_worker_that_is_done_is_told_of_a_later_failure(comm, strategy, n):
    def loop():
        params = np.zeros(n, np.float32)
        with psgd.connect(comm, params, strategy=strategy) as ps:
            ps.step()
            if ps.worker == 1:
                time.sleep(0.3)
                raise ZeroDivisionError

    everywhere(comm, loop, 2, ZeroDivisionError, "worker 1 left")


@pytest.mark.ranks(5)
@pytest.mark.parametrize("strategy", ["sync", "async"])
@pytest.mark.parametrize("n", [10, 50_000])
def test_clipping_over_two_servers_ends_too(comm, strategy, n):
    def loop():
        params = np.zeros(n, np.float32)
        with psgd.connect(comm, params, strategy=strategy, servers=2, clip_norm=1.0) as ps:
            for step in range(1000):
                if ps.worker == 1 and step == 5:
                    raise ZeroDivisionError
                ps.grads[:] = 1
                ps.step()

    everywhere(comm, loop, 3, ZeroDivisionError, "worker 1 left")


@pytest.mark.ranks(4)
@pytest.mark.parametrize("error", ["mpi", "usage", "peer", "exit"])
def test_a_workers_own_error_of_any_class(comm, error):
    from mpi4py import MPI

    raised = {"mpi": MPI.Exception(MPI.ERR_OTHER), "usage": UsageError("x"), "peer": PeerLostError("other")}
    raised = raised.get(error, SystemExit(3))

    def loop():
        with psgd.connect(comm, np.zeros(10, np.float32)) as ps:
            ps.step()
            if ps.worker == 2:
                raise raised
            ps.step()

    everywhere(comm, loop, 3, type(raised), "worker 2 left" if comm.rank != 3 else "")


@pytest.mark.ranks(5)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("strategy", ["sync", "async"])
@pytest.mark.both_mpis_whole
def test_a_server_that_fails_tells_everyone(comm, servers, bad, strategy):
    if bad >= servers:
        pytest.skip("no such server")

    def update(params, grad, state, lr, scale, step):
        if comm.rank == bad and step == 3:
            raise ZeroDivisionError

    def loop():
        rule = Rule("mine", lambda params: (), update)
        params = np.zeros(50_000, np.float32)
        with psgd.connect(comm, params, strategy=strategy, servers=servers, rule=rule) as ps:
            for _ in range(1000):
                ps.step()

    everywhere(comm, loop, bad, ZeroDivisionError, f"server {bad} failed inside psgd.connect")


FAIL_AND_GO_ON = """
import sys
import numpy as np
from mpi4py import MPI
import psgd

comm = MPI.COMM_WORLD
for attempt in range(60):
    params = np.zeros(200_000, np.float32)
    try:
        with psgd.connect(comm, params, strategy="async") as ps:
            for step in range(5):
                if ps.worker == attempt % 2 and step == attempt % 4:
                    raise ZeroDivisionError
                ps.step()
    except (ZeroDivisionError, psgd.PeerLostError):
        pass
    comm.Barrier()
params = np.zeros(1000, np.float32)
with psgd.connect(comm, params, lr=1.0) as ps:
    ps.grads[:] = -1
    ps.step()
sys.stdout.write(f"{params[0]}\\n")
"""


@pytest.mark.job
@pytest.mark.parametrize("shared", ["0", "1"])
def test_programs_go_on_after_failures_and_end_well(job, shared):
    result = job(3, FAIL_AND_GO_ON, timeout=60, env={"PSGD_SHARED": shared}, check=True)
    assert result.stdout.count("1.0\n") == 3
