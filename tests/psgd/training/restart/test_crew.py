"""Five ranks, of which three act: one that acts dies, the others are called from all they do, and take its place."""

LOSES = r"""
import os, signal, time
import numpy as np
import psgd
from mpi4py import MPI
from psgd.kernels.errors import PeerLostError
from psgd.training.restart.crew import Crew
from psgd.training.restart.family import Family

job = MPI.COMM_WORLD
crew, family = Crew(job, 3), Family()
team = crew.team()
if crew.place is not None:
    team = family.adopt(team)
    pair = team.Split(0 if team.rank != 2 else 1, 0)  # which the dead one has no part in
    made = [team.Dup(), pair.Split_type(MPI.COMM_TYPE_SHARED)]
    made[0].Free()
else:
    assert team == MPI.COMM_NULL
if job.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if job.rank == 0:
    try:
        pair.Recv(np.empty(1), 1, 3)  # from one that lives
        raise AssertionError("never sent")
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_REVOKED
elif job.rank == 1:
    family.advance()
    while not team.Get_failed().Get_size():
        MPI.COMM_SELF.Iprobe()
    family.end()
    crew.ring()
    try:
        family.advance()
        raise AssertionError("ended")
    except PeerLostError:
        assert family.adopt(MPI.COMM_SELF.Dup()).Is_revoked()
else:
    before = time.process_time()
    assert crew.stand_by() is False and crew.rung
    assert time.process_time() - before < 1
assert not crew.meet(job.rank != 1)
crew.regroup(lambda living: 3)
assert crew.lost == [2] and crew.numbers == [0, 1, 3, 4] and crew.job.rank == crew.numbers.index(job.rank)
team = crew.team()
assert (crew.place is None) == (job.rank == 4)
if crew.place is None:
    crew.stand_by()
    assert not crew.rung
else:
    team.Barrier()
    crew.wake()
assert crew.meet(True)
crew.regroup(None, leads=crew.job.rank == 2)
assert crew.numbers == [3, 0, 1, 4] and crew.acting == 3
print("fine", flush=True)
os._exit(0)  # MPI_Finalize may wait for the dead
"""


def test_a_dead_rank_is_replaced_by_one_that_stood_by(job):
    done = job(5, LOSES, ulfm=True)
    assert done.returncode == 0 and done.stdout.count("fine") == 4, done.stderr


GONE = r"""
import os, signal
import psgd
from mpi4py import MPI
from psgd.training.restart.crew import Crew

crew = Crew(MPI.COMM_WORLD, 1)
if crew.place == 0:
    os.kill(os.getpid(), signal.SIGKILL)
refused = crew.stand_by()
assert not refused and crew.rung and not crew.meet(not crew.rung)
crew.regroup(lambda living: 1)
if crew.place == 0:
    crew.wake(refused=True)
else:
    assert crew.stand_by() is True
crew.job.Barrier()
print("fine", flush=True)
os._exit(0)
"""


def test_all_that_act_may_die(job):
    done = job(3, GONE, ulfm=True)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stderr
