"""What a strategy without servers is handed; a strategy that one worker alone runs too."""

import numpy as np
import pytest

import psgd
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.alarm import Alarm
from psgd.runtime.mesh import Mesh
from psgd.strategies import averaging
from psgd.worker.context import Alone, RunContext


@pytest.mark.ranks(3)
def test_the_workers_are_all_ranks(comm):
    options = OptimizerOptions(rules.sgd(), schedules.constant(0.1))
    with Mesh(comm, 0, peers=True) as mesh:
        alarm = Alarm(mesh.world, [rank for rank in range(3) if rank != mesh.index], mesh.index)
        context = RunContext(mesh, np.zeros(4), options, RunMetrics(3), None, alarm)
        assert (context.workers.size, context.workers.rank) == (3, comm.rank)
        with pytest.raises(AttributeError):
            context.params = np.ones(4)
        alarm.close()


@pytest.mark.ranks(2)
def test_all_ranks_are_workers(comm):
    contexts = []
    connection = psgd.connect(comm, np.zeros(3), strategy="allreduce", accumulate=2)
    make = connection._options.strategy
    object.__setattr__(connection._options, "strategy", lambda context: contexts.append(context) or make(context))
    with connection as ps:
        ps.step()
        (context,) = contexts
        assert (context.workers.size, context.workers.rank) == (comm.size, comm.rank) and context.accumulate == 2


def test_averaging_runs_alone_only_with_an_outer_step():
    plain = averaging.create(1, period=4, average_momentum=True, local_from=0.0, outer_lr=1.0, outer_momentum=0.0)
    outer = averaging.create(1, period=4, average_momentum=True, local_from=0.0, outer_lr=0.5, outer_momentum=0.0)
    assert isinstance(outer, Alone) and not isinstance(plain, Alone)


@pytest.mark.ranks(1)
def test_an_outer_step_of_one_worker(comm):
    """Every two steps of -1 are made 1.5 times as long."""
    params = np.zeros(3)
    with psgd.connect(comm, params, strategy="averaging", period=2, outer_lr=1.5, lr=1.0) as ps:
        seen = []
        for _ in range(4):
            ps.grads[:] = 1
            ps.step(2)
            seen.append(params[0])
    assert seen == [-1, -3, -4, -6] and params.tolist() == [-6] * 3
