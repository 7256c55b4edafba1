import time

import numpy as np
import pytest

from psgd.checkpoint.declared import Arrays, Combine, Fact
from psgd.worker.base import WorkerBase
from psgd.worker.checkpoint_status import CheckpointStatus


class Walking(WorkerBase):
    """Moves by one a step, and keeps what it has."""

    def __init__(self, index=0):
        super().__init__(np.zeros(3), np.zeros(3), index, CheckpointStatus())
        self.own = np.zeros(2)

    def _take_step(self, samples, loss):
        time.sleep(0.01)
        self.params += samples
        self.version += 1

    def _kept(self):
        return [
            Arrays({"params": self.params}, Combine.ALIKE),
            Arrays({"own": self.own}, Combine.FRESH, found="own: begins anew"),
            Fact("version", self),
        ]

    def _after_restore(self, own, others):
        return ["others"] if own is None else []


def test_a_step_is_timed_and_is_at_no_checkpoint_by_itself():
    one = Walking()
    one.checkpoint.reached = True
    one.step(2, 0.5)
    one.step(1, 0.5)
    assert one.params.tolist() == [3, 3, 3] and one.version == 2
    assert 0.02 <= one.waited_s < 5 and not one.checkpoint.reached
    assert one.overlap(3) is None and not one.stop and (one.bytes_sent, one.bytes_received) == (0, 0)


def test_what_is_declared_is_saved_and_restored():
    one = Walking()
    one.step(2, 0.5)
    one.own[:] = 4
    state = one.state()
    again, other = Walking(), Walking()
    assert again.restore(state, [state]) == []
    assert again.params.tolist() == [2, 2, 2] and again.own.tolist() == [4, 4] and again.version == 1
    assert other.restore(None, [state]) == ["own: begins anew", "others"]
    assert other.params.tolist() == [2, 2, 2] and other.own.tolist() == [0, 0]


def test_a_strategy_has_to_write_its_step_and_what_it_keeps():
    bare = WorkerBase(np.zeros(1), np.zeros(1), 0, CheckpointStatus())
    with pytest.raises(NotImplementedError):
        bare.step(1, 0.0)
    with pytest.raises(NotImplementedError):
        bare.state()
