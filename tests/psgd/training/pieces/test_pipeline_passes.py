"""What backends of pipelines have in common, with a pipeline that notes what it is asked for."""

import numpy as np

from psgd.runtime.rng import bits
from psgd.training.pieces.pipeline_passes import PipelinePasses


class Noted:
    """A pipeline."""

    def __init__(self):
        self.log, self.tally = [], None

    def draw(self, key, samples):
        self.log.append(("draw", key, len(samples)))

    def gradient(self, n, x, y, on_ready):
        self.log.append(("gradient", n, x, y, on_ready))
        return 0.5

    def evaluate(self, n, x, y):
        self.log.append(("evaluate", n, x))
        return n / 2, float(n)


class Passes(PipelinePasses):
    def _batch(self, indices, touch):
        return "x", "y"

    def _ordered(self, start, stop):
        return (start, stop), None

    def _used(self):
        self._pipeline.log.append("used")

    def wait(self):
        pass


def test_a_gradient_draws_by_its_step_and_evaluations_share_the_samples():
    pipeline = Noted()
    passes = Passes(pipeline, 23, 5)
    passes.begin(1, 2, 3)
    assert passes.gradient(np.arange(4), "ready") == 0.5
    assert pipeline.log == [("draw", bits(1, "step", 2, 3), 4), ("gradient", 4, "x", "y", "ready"), "used"]
    pipeline.log.clear()
    found = np.array([passes.evaluate(part, 2) for part in (0, 1)]).sum(0)
    assert tuple(found) == (11.5, 23.0)
    assert [each[2] for each in pipeline.log] == [(0, 5), (10, 15), (20, 23), (5, 10), (15, 20)]
    passes.tally = "told"
    assert pipeline.tally == passes.tally == "told"
