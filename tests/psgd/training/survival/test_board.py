"""A node's table: ranks read what the others wrote of themselves, and kill one of them by its own process."""

import pytest
from harness import mpi

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]

TABLE = """
import os, signal, time
from mpi4py import MPI
from psgd.training.survival.board import Board
comm = MPI.COMM_WORLD
board = Board(comm)
rank = comm.Get_rank()
assert board.works and board.node == [0, 1, 2] and board.nodes == [0, 0, 0]
if rank:
    board.wait(rank == 2)
comm.Barrier()
now = time.monotonic_ns()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)
if rank == 0:
    assert board.waits_since(1) is None and board.lags_since(1) <= now
    assert board.waits_since(2) <= now and board.lags_since(2) <= now
    beat = board.lags_since(2)
if rank == 2:
    time.sleep(0.2)
    board.beat()
if rank == 0:
    limit = time.monotonic() + 20
    while not board.stopped(1) or board.lags_since(2) == beat:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert not board.stopped(2) and board.dropped_ns(1) == 0
    board.drop(1, 7)
    print("dropped")
while board.dropped_ns(1) != 7:
    time.sleep(0.01)
failed = comm.Get_failed
while failed().Get_size() == 0:
    MPI.COMM_SELF.Iprobe()
    time.sleep(0.01)
print("lost", flush=True)
os._exit(0)
"""


def test_it_says_who_waits_and_who_is_stopped_and_kills_that_one(job):
    done = job(3, TABLE, ulfm=True, timeout=40)
    assert done.stdout.count("lost") == 2 and done.stdout.count("dropped") == 1, done.stderr
