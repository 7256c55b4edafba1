"""The common part of a worker: time, the checkpoint's flag, and state that is only declared."""

import time

import numpy as np
import pytest

from psgd.checkpoint.declared import Arrays, Combine, Fact
from psgd.worker.base import WorkerBase
from psgd.worker.checkpoint_status import CheckpointStatus


class Toy(WorkerBase):
    """Adds its gradient; all workers have the same parameters."""

    def __init__(self, index):
        super().__init__(np.zeros(3), np.zeros(3), index, CheckpointStatus())

    def _take_step(self, samples, loss):
        assert not self.checkpoint.reached
        time.sleep(0.01)
        self.params += samples * self.grads
        self.version += 1

    def _kept(self):
        return [Arrays({"params": self.params}, Combine.ALIKE), Fact("version", self)]

    def _after_restore(self, own, others):
        return [f"{len(others)} states, own: {own is not None}"]


def test_a_step_is_timed_and_begins_behind_the_checkpoint():
    worker = Toy(0)
    worker.checkpoint.reached = True
    worker.grads[:] = 2
    worker.step(3, 0.0)
    worker.step(0, 0.0)
    assert worker.params.tolist() == [6, 6, 6] and 0.02 <= worker.waited_s < 5
    assert worker.overlap(3) is None and not worker.accumulates
    assert (worker.stop, worker.bytes_sent, worker.bytes_received) == (False, 0, 0)


def test_what_is_declared_is_saved_and_restored():
    workers = [Toy(0), Toy(1)]
    for worker in workers:
        worker.grads[:] = 1
        worker.step(4, 0.0)
    states = [worker.state() for worker in workers]
    assert [sorted(state.tensors) for state in states] == [["params"], []]
    assert [state.facts for state in states] == [{"version": 1}] * 2
    again = [Toy(0), Toy(1)]
    assert again[0].restore(states[0], states) == ["2 states, own: True"]
    assert again[1].restore(None, states) == ["2 states, own: False"]
    assert [worker.params.tolist() for worker in again] == [[4, 4, 4], [0, 0, 0]]
    assert [worker.version for worker in again] == [1, 1]


def test_a_strategy_has_to_say_what_it_keeps():
    with pytest.raises(NotImplementedError):
        WorkerBase(np.zeros(1), np.zeros(1), 0, CheckpointStatus()).state()
    with pytest.raises(NotImplementedError):
        WorkerBase(np.zeros(1), np.zeros(1), 0, CheckpointStatus()).step(1, 0.0)
