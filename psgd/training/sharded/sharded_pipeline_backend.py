"""Gradients by a pipeline whose stages are shared by the copies; evaluation in which all of these take part."""

from psgd.parallel.sharded.pieces.sharded_pipeline import ShardedPipeline
from psgd.training.pieces.pipeline_backend import PipelineBackend
from psgd.training.pieces.pipeline_passes import PipelinePasses


class Together(PipelinePasses):
    """What a backend of such a pipeline does otherwise: comes before it among the bases.

    In stage 3 all copies evaluate together, as many times each.
    """

    _pipeline: ShardedPipeline

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        if self._pipeline.exchange.stage == 2:
            return super().evaluate(part, parts)
        correct, loss_sum = 0.0, 0.0
        for first in range(0, self._samples, parts * self._at_once):
            start = min(first + part * self._at_once, self._samples)
            stop = min(start + self._at_once, self._samples)
            x, y = self._ordered(start, stop) if stop > start else (None, None)
            most = min(self._at_once, self._samples - first)
            right, loss = self._pipeline.evaluate(stop - start, x, y, most)
            correct += right
            loss_sum += loss
        return correct, loss_sum


class ShardedPipelineBackend(Together, PipelineBackend):
    """On the cores of all ranks. Implements `Backend`."""
