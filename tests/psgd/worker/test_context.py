import numpy as np
import pytest

from psgd.collectives.communicator import Communicator
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh
from psgd.worker.context import RunContext


@pytest.mark.ranks(3)
def test_the_workers_are_all_ranks(comm):
    options = OptimizerOptions(rules.sgd(), schedules.constant(0.1))
    with Mesh(comm, 0, peers=True) as mesh:
        alarm = Alarm(mesh.world, [rank for rank in range(3) if rank != mesh.index], mesh.index)
        context = RunContext(mesh, np.zeros(4), options, RunMetrics(3), None, alarm, Communicator)
        assert (context.workers.size, context.workers.rank) == (3, comm.rank)
        with pytest.raises(AttributeError):
            context.params = np.ones(4)
        alarm.close()
