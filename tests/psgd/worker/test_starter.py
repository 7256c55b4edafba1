"""Which worker a run gets, and that it restores before it starts."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.transports.gradient_memory import apart
from psgd.worker import starter
from psgd.worker.compressed_push_pull import CompressedPushPullWorker
from psgd.worker.push_pull import PushPullWorker

OPTIONS = OptimizerOptions(rules.sgd(), schedules.constant(0.5))


def test_a_single_rank_takes_steps_on_its_own_vector():
    params = np.zeros(10)
    worker = starter.create_local(params, OPTIONS, 4, RunMetrics(1))
    worker.grads[:] = 1.0
    worker.step(1, 0.0)
    np.testing.assert_array_equal(params, -0.5)


@pytest.mark.ranks(2)
def test_compression_has_a_worker_of_its_own(comm):
    with Mesh(comm, 1) as mesh:
        if mesh.role == "server":
            return
        for compression in (None, Compression("topk", 0.1, 0.0, 0, 0.0, 0.0)):
            context = PushPullContext(mesh, np.zeros(50), OPTIONS, RunMetrics(1), Waiter(True), 64, compression)
            worker = starter.create_push_pull(context, apart(mesh, 50, np.dtype(np.float64)))
            assert type(worker) is (PushPullWorker if compression is None else CompressedPushPullWorker)
            worker.transport.close()


@pytest.mark.parametrize("warns", [False, True])
def test_a_resumed_worker_restores_before_it_starts(warns, capsys):
    done = []

    def restore(own, others):
        done.append(("restore", own, others))
        return ["momentum: begins anew"]

    worker = SimpleNamespace(restore=restore, start=lambda: done.append("start"), checkpoint=SimpleNamespace())
    saver = SimpleNamespace(every=7, found=object(), states=lambda: ("own", ["all"]), restored=lambda take: take())
    starter.start(worker, saver, cast(Mesh, SimpleNamespace(index=0 if warns else 1, servers=1, survival=None)))
    assert done == [("restore", "own", ["all"]), "start"] and worker.checkpoint.every == 7
    said = capsys.readouterr()
    assert ("warning: resume: momentum: begins anew" in said.out + said.err) == warns
