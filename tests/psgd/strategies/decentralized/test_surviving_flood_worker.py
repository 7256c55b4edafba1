"""Flooding goes on without workers that are killed: those that live have applied each update once."""

import json

import pytest
from harness import mpi

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]

RUN = r"""
from mpi4py import MPI
from psgd.config import configure
from psgd.runtime.fail_together import guard
from psgd.runtime.ulfm.leave import leave
from psgd.strategies.decentralized import flood_worker
from psgd.training import run

apart = []
take_one = flood_worker.FloodWorker._take_one

def taken(self):
    take_one(self)
    apart.append(self.disagreement)

flood_worker.FloodWorker._take_one = taken
comm = MPI.COMM_WORLD
with guard(comm):
    result = run(configure(epochs=2, strategy="decentralized", eval_every=0, lr=0.1, **OPTIONS), comm)
    if result is not None:
        print(result["samples"], apart[0], result["lost_ranks"])
leave(comm, 0)
"""


@pytest.mark.parametrize(
    ("peers", "compress", "inject", "lost"),
    [
        ("all", None, "kill:0@9,kill:2@12,compute:0.002", [0, 2]),
        ("ring", "none", "kill:1@5,kill:3@5,compute:0.002", [1, 3]),  # those that live have no link in the old ring
        ("random:2", None, "kill:2@19,slow:2:6,compute:0.001", [2]),  # when the others are done
    ],
)
def test_all_have_applied_all(job, peers, compress, inject, lost):
    options = {"peers": peers, "compress": compress, "inject": inject}
    done = job(4, RUN.replace("OPTIONS", repr(options)), ulfm=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("what its codec had left to send is lost") == (len(lost) if compress is None else 0)
    samples, apart, ranks = done.stdout.split(None, 2)
    assert samples == "2994" and sorted(json.loads(ranks)) == lost
    assert float(apart) < 1e-4  # by rounding: an update that is missing anywhere is larger
