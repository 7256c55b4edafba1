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


def saved_by_a_server(**tensors):
    facts = {"version": 5, "samples": 9, "open": 0, "range": [0, 3, 3], "cut": ["params"]}
    log = {"actions": 5, "version": 5, "clocks": [3, 2], "positions": [5, 4], "opened": 0}
    return State({"params": np.full(3, 1.0), **tensors}, {**facts, "log": log})


def test_momentum_of_workers_before_encoding_becomes_its_own():
    for name, parts in (("velocity", [slice(0, 3)]), ("topk", [slice(0, 2), slice(2, 3)])):
        workers = []
        for value in (2.0, 4.0):
            vector = np.arange(3.0) * value
            named = (
                {"velocity": vector}
                if name == "velocity"
                else {f"{k}.velocity": vector[p] for k, p in enumerate(parts)}
            )
            workers.append(State({**named, "0.residual": vector}, {"whole": False}))
        worker = made()
        lines = worker.restore(None, [saved_by_a_server(), *workers])
        assert lines == [
            "momentum before encoding: the workers' mean",
            "residuals: gradients that the workers had left to send are dropped, since a single rank sends none",
        ]
        assert worker.state().tensors["state0"].tolist() == [0.0, 3.0, 6.0] and worker.version == 5


def test_what_workers_without_a_server_had_left_to_send_is_added():
    states = [State({"codec.residual": np.full(3, value)}, {"version": 5, "samples": 9}) for value in (2.0, 4.0)]
    states[0].tensors["params"] = np.arange(3.0)
    worker = made()
    assert worker.restore(None, states) == [
        "the optimizer's state: reset",
        "residuals: added to the parameters",
    ]
    assert worker.params.tolist() == [6, 7, 8]


def test_a_group_that_was_open_takes_its_step_at_the_end_at_the_latest():
    state = saved_by_a_server(open=np.full(3, 40.0), state0=np.zeros(3))
    state.facts |= {"cut": ["open", "params", "state0"], "open": 10}
    ended = []
    for steps in (0, 1):
        worker = made()
        assert worker.restore(None, [state]) == []
        worker.start()
        for _ in range(steps):
            step(worker, 0, np.nan)
        worker.finish()
        ended.append((worker.params.tolist(), worker.state().facts["version"]))
    assert ended[0] == ended[1] and ended[0] == ([1.0 - 4.0] * 3, 6)
