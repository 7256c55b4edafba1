"""`allreduce` with a codec goes on where a worker dies in a step, at chosen places: one process's bits, on all."""

import json

import pytest
from harness import mpi
from harness.losing import compressed_that_loses_one, trained

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]

DEATH = 2  # updates that worker 1 makes before
HOOK = """
import os, signal
from mpi4py import MPI
from psgd.collectives.communicator import Communicator
from psgd.collectives.compressed import CompressedAllreduce
from psgd.kernels.errors import PeerLostError

rank, calls, place = MPI.COMM_WORLD.rank, {"add": 0, "gather": 0}, "PLACE"
add_all, gather = CompressedAllreduce._add_all, Communicator.Allgatherv

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def watched_add(self, nbytes, mark, out):
    calls["add"] += 1  # the first call compiles
    if place == "encoded" and rank == 1 and calls["add"] == DEATH + 2:
        die()
    before = out.copy()
    add_all(self, nbytes, mark, out)
    if place == "complete" and calls["add"] == DEATH + 1:
        if rank == 1:
            die()
        if rank == 2:
            out[:] = before
            raise PeerLostError("as if the last message had not come")

def watched_gather(self, *arguments):
    calls["gather"] += 1
    if place == "lengths" and rank == 1 and calls["gather"] == DEATH + 2:
        die()
    gather(self, *arguments)

CompressedAllreduce._add_all, Communicator.Allgatherv = watched_add, watched_gather
"""


@pytest.mark.parametrize(
    ("place", "name", "known"),
    [
        ("encoded", "topk", (1, 1)),  # all have encoded: residuals are put back
        ("lengths", "threshold", (1, 1)),  # some may send payloads already; the threshold has changed too
        ("complete", "onebit", (1, 0)),  # worker 0 has the step, and worker 2 takes it, with its own residual behind it
    ],
)
def test_residuals_are_those_of_the_state_from_which_all_go_on(job, tmp_path, place, name, known):
    hook = HOOK.replace("PLACE", place).replace("DEATH", str(DEATH))
    options = {"strategy": "allreduce", "lr": 0.1, "compress": name, "density": 0.05}
    said, found = trained(job, tmp_path / "w.npy", first=hook, **options)
    assert said[0] == "2994" and json.loads(said[1]) == [1]
    expected = compressed_that_loses_one(name, 0.05, 100, 2, 0.1, DEATH, known)
    assert found.tobytes() == expected.tobytes()
