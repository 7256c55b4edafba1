import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.compression.options import Compression
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.server.context import PushPullContext

CODEC = Compression("onebit", 0.1, 0.0, 0, 0.9, 0.0)


@pytest.mark.ranks(3)
def test_servers_do_what_workers_leave_to_them(comm):
    options = OptimizerOptions(rules.momentum(0.9), schedules.constant(0.5), clip_norm=2.0, reduction_factor=3.0)
    with Mesh(comm, 2) as mesh:
        for compression in (None, CODEC):
            context = PushPullContext(
                mesh, np.zeros(100, np.float32), options, RunMetrics(1), Waiter(True), 64, compression
            )
            assert [len(part) for part in context.shards] == [64, 36]  # whole cache lines
            servers = context.server_optimizer
            assert (servers.schedule, servers.reduction_factor) == (options.schedule, 3.0)
            if compression is None:
                assert servers == options
            else:
                assert (servers.rule.name, servers.clip_norm) == ("sgd", 0.0)
