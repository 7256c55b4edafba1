"""What each server is made of."""

import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext
from psgd.server.replicas import replicated_parts


class Hand:
    failures = None


@pytest.mark.ranks(3)
def test_each_server_has_its_own_shard_and_stands_by_for_the_one_before(comm):
    mesh = Mesh(comm, servers=2)
    mesh.survival = Hand()
    options = OptimizerOptions(rules.sgd(), schedules.constant(0.1))
    context = PushPullContext(mesh, np.zeros(100), options, RunMetrics(1), Waiter(False), 32)
    if mesh.role == "server":
        shards, transport = replicated_parts.create(context, [None])
        assert sum(map(len, shards.ranges)) == 100 and shards.ranges[0].start == context.shards[mesh.index].start
        assert sum(map(len, shards.ranges[shards.answered :])) == len(context.shards[1 - mesh.index])
        transport.close()
    comm.Barrier()
