"""A single rank: the servers' step taken here, and its checkpoints."""

import numpy as np
import pytest

from psgd.checkpoint.state import State
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant
from psgd.worker import starter


def made(n=3):
    optimizer = OptimizerOptions(rules.momentum(0.5), constant(1.0))
    return starter.create_local(np.zeros(n), optimizer, 2, RunMetrics(1))


def step(worker, samples=1, value=1.0):
    worker.grads[:] = value
    worker.step(samples, 0.5)


def test_steps():
    worker = made()
    worker.start()
    step(worker)
    step(worker, 0, np.nan)
    assert worker.params.tolist() == [-1] * 3 and worker.version == 1
    step(worker)
    assert worker.params.tolist() == [-2.5] * 3 and worker.version == 2


def test_checkpoints_by_interval_and_on_request():
    worker = made()
    worker.checkpoint.every = 2
    worker.start()
    reached = []
    for clock in range(6):
        if clock == 4:
            worker.checkpoint.ask(stop=True)
        step(worker)
        reached.append(worker.checkpoint.step if worker.checkpoint.reached else 0)
    assert reached == [0, 2, 0, 4, 5, 6]
    assert worker.stop and not worker.checkpoint.request


@pytest.mark.parametrize("own", [True, False])
def test_it_resumes_from_its_own_state_or_from_a_servers_parts(own):
    worker = made()
    worker.start()
    for _ in range(3):
        step(worker)
    state = worker.state()
    again = made()
    assert again.restore(state if own else None, [state]) == []
    for each in (worker, again):
        step(each)
    assert again.params.tolist() == worker.params.tolist() and again.version == 4


def test_it_resumes_from_several_workers():
    arrays = [{"params": np.full(3, value), "state0": np.full(3, value)} for value in (2.0, 4.0)]
    states = [State(each, {"version": 5, "samples": 9}) for each in arrays]
    worker = made()
    assert worker.restore(None, states) == ["the workers' optimizer's state: its mean"]
    assert worker.params.tolist() == [3, 3, 3] and worker.version == 5
    worker.start()
    step(worker, value=0.0)
    assert worker.params.tolist() == [1.5] * 3
