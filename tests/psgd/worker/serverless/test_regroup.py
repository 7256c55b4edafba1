"""Workers that keep pace go on without one that is killed: each sample once, the same bits on all, as one process."""

import json

import numpy as np
import pytest
from harness import mpi
from harness.losing import sync_that_loses_one

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]

RUN = r"""
import sys
import numpy as np
from mpi4py import MPI
from psgd.config import configure
from psgd.runtime.fail_together import guard
from psgd.runtime.ulfm.leave import leave
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import buckets
from psgd.training import run, trainer

buckets.BUCKET_BYTES = 1 << 10
finals = []
trained = trainer.Trainer.train

def train(self, ps):
    trained(self, ps)
    finals.append(ps)

trainer.Trainer.train = train
comm = MPI.COMM_WORLD
options = dict(epochs=2, model="softmax", batch_size=100, eval_every=0)
with guard(comm):
    result = run(configure(**options, **OPTIONS), comm)
    living = TOLERANCE.living(comm)
    everyone = living.gather(finals[0].params.tobytes())
    assert (result is None) == (living.rank > 0), "the first has the result"
    if living.rank == 0:
        assert len(set(everyone)) == 1, "not the same bits on all"
        print(result["samples"], result["lost_ranks"])
        np.save("PATH", np.frombuffer(everyone[0], np.float32))
leave(comm, 0)
"""


def trained(job, path, ranks=3, env=None, **options):
    code = RUN.replace("OPTIONS", repr(options)).replace("PATH", str(path))
    done = job(ranks, code, ulfm=True, timeout=90, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(None, 1), np.load(path)


@pytest.mark.parametrize("shared", ["1", "0"])
def test_allreduce_is_one_process_that_loses_that_worker_at_that_step(job, tmp_path, shared):
    """In shared memory the death is seen in the node's processes, over messages by MPI; buckets are on their way."""
    env = {"PSGD_SHARED": shared, "PSGD_PROGRESS": "1"}
    said, found = trained(job, tmp_path / "w.npy", strategy="allreduce", inject="kill:1@3", lr=0.1, env=env)
    assert said[0] == "2994" and json.loads(said[1]) == [1]
    np.testing.assert_allclose(found, sync_that_loses_one(100, 2, 0.1, death=2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "inject", "own", "lost"),
    [
        ("allreduce", "kill:0@3,kill:3@3,kill:2@7", {}, [0, 2, 3]),
        ("allreduce", "kill:1@8", {}, [1]),  # at the very end: eight steps of two epochs
        ("averaging", "kill:2@5,kill:0@6", {"period": 3, "outer_momentum": 0.5}, [0, 2]),
        ("averaging", "kill:3@1,slow:0:3", {"period": 1}, [3]),
        ("easgd", "kill:2@5,kill:1@6", {"period": 3}, [1, 2]),
        ("easgd", "kill:1@8", {"period": 2}, [1]),  # in the last step, which is one of an exchange
        ("averaging", "kill:1@8", {"period": 3}, [1]),  # found out when the others have made all their steps
    ],
)
def test_several_die(job, tmp_path, strategy, inject, own, lost):
    said, _ = trained(job, tmp_path / "w.npy", ranks=4, strategy=strategy, inject=inject, optimizer="momentum", **own)
    assert said[0] == "2994" and sorted(json.loads(said[1])) == lost
