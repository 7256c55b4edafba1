"""Workers that keep pace go on without one that is killed: each sample once, the same bits on all, as one process."""

import json

import numpy as np
import pytest
from harness import mpi
from harness.losing import sync_that_loses_one, trained

pytestmark = [pytest.mark.job, pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")]


@pytest.mark.parametrize(("shared", "accumulate", "death"), [("1", 1, 2), ("0", 1, 2), ("1", 2, 1)])
def test_allreduce_is_one_process_that_loses_that_worker_at_that_step(job, tmp_path, shared, accumulate, death):
    """In shared memory the death is seen in the node's processes, over messages by MPI; buckets are on their way.

    Where an update has two gradients, those that live have added one as the other dies, and compute both again.
    """
    env = {"PSGD_SHARED": shared, "PSGD_PROGRESS": "1"}
    kill = f"kill:1@{accumulate * (death + 1)}"
    options = {"strategy": "allreduce", "lr": 0.1, "accumulate": accumulate, "inject": kill}
    said, found = trained(job, tmp_path / "w.npy", env=env, **options)
    assert said[0] == "2994" and json.loads(said[1]) == [1]
    np.testing.assert_allclose(found, sync_that_loses_one(100, 2, 0.1, death, accumulate), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "inject", "own", "lost"),
    [
        ("allreduce", "kill:0@3,kill:3@3,kill:2@7", {}, [0, 2, 3]),
        ("allreduce", "kill:1@8", {}, [1]),  # at the very end: eight steps of two epochs
        ("allreduce", "kill:1@8", {"accumulate": 3}, [1]),  # all end with two gradients, of which one does not come
        ("easgd", "kill:1@6,kill:3@7", {"period": 1, "accumulate": 3}, [1, 3]),
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
