"""What the ranks of a full pipeline do, and that waiting counts as idle."""

import time

import numpy as np
import pytest

from psgd.launch.bench.pipeline.full_pipeline import Continuous
from psgd.nn.linear import Linear
from psgd.nn.model import Model


class Slow(Linear):
    """A layer that takes its time."""

    def forward(self, state, x, params):
        time.sleep(0.02)
        return super().forward(state, x, params)


@pytest.mark.ranks(2)
def test_a_slower_stage_makes_the_other_one_idle(comm):
    layers = (Slow(5), Slow(5), Linear(3))  # the first stage has both
    x, y = np.ones((6, 4), np.float32), np.zeros(6, np.int64)
    made = Continuous(comm, Model(layers, (4,)), (2,), 1, x, y, microbatches=1, two_versions=False)
    first = made.run()
    assert first == made.run() > 0  # the steps change nothing
    slow, fast = made.shares()
    assert slow["passes"] > 0.6 and fast["idle"] > 0.6
    assert slow["steps"] > 0 and sum(slow.values()) == pytest.approx(1)
    assert made.step_seconds() > 0.04
    made.close()
