"""What is made of a communicator of a family belongs to it. What ends them all is tried in `test_crew`."""

import pytest
from harness import mpi


@pytest.mark.ranks(2)
def test_all_that_is_made_of_it_belongs_to_it(comm):
    from mpi4py import MPI

    from psgd.training.restart.family import Family, FamilyComm

    family = Family()
    first = family.adopt(comm.Dup())
    made = [first.Dup(), first.Split(comm.rank), first.Split_type(MPI.COMM_TYPE_SHARED)]
    made += [made[1].Dup(), first.Split(MPI.UNDEFINED if comm.rank else 0)]
    assert all(isinstance(each, FamilyComm) and each.family is family for each in made)
    assert (made[-1] == MPI.COMM_NULL) == bool(comm.rank) and made[1].size == 1
    family.advance()
    for each in (first, *made):
        if each != MPI.COMM_NULL:
            each.Free()
    assert first == MPI.COMM_NULL


LEAVES = r"""
import os, signal, time
import psgd
from mpi4py import MPI
from psgd.kernels.errors import PeerLostError
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.training.restart.family import Family

job, family = MPI.COMM_WORLD, Family()
comm = family.adopt(job.Dup())
deaths = MpiDeaths(comm)
assert deaths.agree(6 if job.rank else 3) == 2
if job.rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
living = MpiDeaths(deaths.shrink())
assert living.agree(7) == 7
if job.rank == 2:
    time.sleep(0.3)
    family.end()
else:
    began = time.monotonic()
    for wait in ((living.shrink, deaths.shrink) if job.rank else (living.shrink, lambda: deaths.agree(1))):
        try:
            wait()
            raise AssertionError("rank 2 has left")
        except PeerLostError:
            assert time.monotonic() - began < 5
        if job.rank == 0:
            break
    assert not family.ended
    family.end()
crew = MpiDeaths(job)
assert crew.shrink().size == 3 and crew.agree(1) == 1
print("fine", flush=True)
os._exit(0)  # MPI_Finalize may wait for the dead
"""


@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_who_leaves_ends_the_agreements_of_those_that_have_not(job):
    done = job(4, LEAVES, ulfm=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stderr
