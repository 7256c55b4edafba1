"""Gradients computed by a pipeline: the first stage takes the samples, the last one the labels."""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.data import Dataset
from psgd.data.batches import Batches
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.evaluation import evaluated_at_once
from psgd.parallel.pipeline import Pipeline
from psgd.training.pieces.pipeline_passes import Batch, PipelinePasses


class PipelineBackend(PipelinePasses):
    """On the cores of all ranks that hold one copy of the model. Implements `Backend`; all its calls are collective.

    Args:
        pipeline: of this rank.
        stages: the pipeline's ranks.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
        tokens: of a sample that has a loss for each of them; else 1.
        dtype: float32 or float64, of the samples.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        stages: MPI.Intracomm,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        tokens: int = 1,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(pipeline, dataset.test.samples, evaluated_at_once(tokens, in_pieces=True))
        self._first, self._last = stages.Get_rank() == 0, stages.Get_rank() == stages.Get_size() - 1
        most = min(batch_size, dataset.train.samples)
        self._batches = Batches(dataset.train, statistics, most, dtype) if self._reads else None
        self._test = Batches(dataset.test, statistics, self._at_once, dtype) if self._reads else None

    @property
    def _reads(self) -> bool:
        return self._first or self._last

    def prepare(self, params: Array) -> None:
        self.bind(params, np.zeros_like(params))
        rows = np.zeros(1, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        self.gradient(rows)
        self._pipeline.counters.clear()
        if self._test is not None:
            self._test.ordered(0, min(1, self._samples))

    def _batch(self, indices: NDArray[np.int64], touch: Callable[[Array], None] | None) -> Batch:
        if self._batches is None:
            return None, None
        x, y = self._batches.fetch(indices)
        if touch is not None and self._first:
            touch(x)
        return x, y

    def _ordered(self, start: int, stop: int) -> Batch:
        return (None, None) if self._test is None else self._test.ordered(start, stop)

    def wait(self) -> None:
        pass
