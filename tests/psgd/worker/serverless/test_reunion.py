"""Where workers that do not keep pace meet after a death; whole runs are in the tests of the strategies."""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from harness import mpi
from harness.failures import FakeFailures
from mpi4py import MPI

from psgd.collectives.mpi.wait import Waiter
from psgd.kernels.errors import PeerLostError
from psgd.worker.serverless import reunion as module
from psgd.worker.serverless.checkpoint_barrier import AbandonedError
from psgd.worker.serverless.checkpoint_votes import CheckpointVotes
from psgd.worker.serverless.reunion import Reunion

needs_ulfm = pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")


class Alone(FakeFailures):
    """Of the workers 0, which there is, and 1 and 2."""

    def __init__(self, comm):
        super().__init__(3)
        self.comm, self.said = comm, []

    def shrink(self):
        return self.comm.Dup()

    def agree(self, bits):
        self.said.append(bits)
        return bits


class Worker:
    """Fails once where another dies while all meet."""

    def __init__(self, fails=0):
        self.fails, self.levels, self.members = fails, 0, None

    def facts(self):
        return (7, 8)

    def level(self, comm, members, facts):
        assert facts.tolist() == [[7, 8]] and members == [0]
        self.levels += 1
        if self.levels <= self.fails:
            raise PeerLostError("worker 2 died too")
        return [10, 20, 30]

    def settle(self, comm, members):
        self.members = members


class HandOver:
    def __init__(self):
        self.told, self.received = [], []

    def lost(self, worker, applied, waiting, takers):
        self.told.append((worker, applied, waiting, takers))
        return 5, {0: np.array([worker])}

    def lead(self, worker):
        assert worker == 0

    def receive(self, words):
        self.received.append(words.tolist())


@contextlib.contextmanager
def made(comm, worker):
    failures = Alone(comm)
    mesh = SimpleNamespace(worker=comm, workers=3, index=0, survival=HandOver())
    alarm = SimpleNamespace(lets_die=False, check=lambda: None)
    with patch.object(module, "MpiDeaths", lambda comm: failures):
        reunion = Reunion(mesh, alarm, worker)
        assert alarm.lets_die
        yield reunion, failures, mesh.survival


@needs_ulfm
@pytest.mark.ranks(1)
def test_a_death_that_is_found_shares_out_the_samples_of_all_that_died(comm):
    worker = Worker(fails=1)
    with made(comm, worker) as (reunion, failures, hand_over):
        reunion.drawn = 12
        assert not reunion.look() and worker.levels == 0
        failures.kill(1)
        reunion.notice(MPI.Exception(MPI.ERR_PROC_FAILED))  # so that it looks at once
        assert reunion.look() and failures.revoked
    assert failures.said == [0, 0, 1]  # the steps are not over; one more died; all have met
    assert worker.levels == 2 and worker.members == reunion.members == [0]
    assert hand_over.told == [(lost, [10, 20, 30], {0: 12}, [0]) for lost in (1, 2)]
    assert hand_over.received == [[1], [2]]


@pytest.mark.ranks(1)
def test_the_run_is_over_once_all_say_so(comm):
    with made(comm, Worker()) as (reunion, failures, hand_over):
        said = []
        assert reunion.ends(lambda: said.append("done"), lambda: True, Waiter(False))
        assert reunion.ends(lambda: said.append("done"), lambda: False, Waiter(False))
    assert said == ["done"] and failures.said == [1] and not hand_over.told


@pytest.mark.ranks(1)
def test_a_death_at_the_end_gives_more_to_do(comm):
    with made(comm, Worker()) as (reunion, failures, _):
        failures.kill(2)
        assert not reunion.ends(lambda: None, reunion.look, Waiter(False))


@pytest.mark.ranks(1)
@pytest.mark.parametrize("left", [False, True])
def test_a_checkpoint_in_which_one_dies_is_made_by_all_or_by_none(comm, left):
    with made(comm, Worker()) as (reunion, failures, _):
        votes = CheckpointVotes()
        votes.ask(True)

        def act():
            votes.decide(votes.take_request(), 9)
            if not failures.failed():
                return
            raise AbandonedError

        def others_have_left(comm, told=reunion._tell):
            reunion._saved += left
            return told(comm)

        reunion._tell = others_have_left
        failures.kill(1)
        assert reunion.saves(votes, act) == left
        assert (votes.reached, votes.stopping, votes.request) == ((True, True, 0) if left else (False, False, 2))
        failures._dead.clear()
        votes.ask(True)
        assert reunion.saves(votes, act) and votes.reached


@needs_ulfm
@pytest.mark.ranks(1)
def test_other_errors_are_raised(comm):
    with made(comm, Worker()) as (reunion, _, _):
        with reunion.liveness.guard():
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        with pytest.raises(MPI.Exception), reunion.liveness.guard():
            raise MPI.Exception(MPI.ERR_TRUNCATE)
