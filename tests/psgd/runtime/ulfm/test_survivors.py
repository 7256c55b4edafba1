"""What those that live do together, while ranks die in it, one after the other."""

from types import SimpleNamespace

import pytest
from harness import mpi
from mpi4py import MPI

from psgd.runtime.ulfm import survivors

DIES = r"""
import os, signal
import psgd
from mpi4py import MPI
from psgd.runtime.ulfm.survivors import Survivors
from psgd.runtime.ulfm.tolerance import TOLERANCE

world, tries = MPI.COMM_WORLD, []
assert TOLERANCE.together(world, lambda comm: comm.size) == 4
job = world.Dup()
survivors = Survivors(job, lambda living: living.Split(0, -living.rank), complete=True)

def act(comm):
    tries.append(comm.size)
    if (world.rank, len(tries)) in ((3, 1), (1, 2)):
        os.kill(os.getpid(), signal.SIGKILL)
    return comm.allgather(world.rank)

assert survivors.together(act) == [2, 0] and tries[0] == 4 and tries[-1] == 2
assert TOLERANCE.together(world, lambda comm: comm.size) == 2 == TOLERANCE.living(world).size
print("fine", flush=True)
os._exit(0)  # MPI_Finalize may wait for the dead
"""


@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_it_is_made_again_until_nobody_dies_in_it(job):
    done = job(4, DIES, ulfm=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stderr


def test_a_death_while_they_are_gathered_is_one_more_attempt(monkeypatch):
    class Deaths:
        """Gathers those that live, and the first time one of them dies meanwhile."""

        def __init__(self, job):
            self.tries, self.agreed = 0, []

        def shrink(self):
            self.tries += 1
            if self.tries == 1:
                raise MPI.Exception(MPI.ERR_OTHER)
            return "those that live"

        def agree(self, fine):
            self.agreed.append(fine)
            return fine

    monkeypatch.setattr(survivors, "MpiDeaths", Deaths)
    monkeypatch.setattr(survivors, "means_death", lambda error: error.Get_error_class() == MPI.ERR_OTHER)
    monkeypatch.setattr(survivors, "TOLERANCE", SimpleNamespace())
    found = survivors.Survivors(MPI.COMM_SELF)
    assert found.together(lambda comm: f"done by {comm}") == "done by those that live"
    assert found._deaths.agreed == [0, 1] and survivors.TOLERANCE.survivors == "those that live"
