"""Gradients computed by a pipeline on GPUs: the first stage's samples and the last one's labels are made there."""

from collections.abc import Callable

import cupy
import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.backend import pinned, samples
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.evaluation import evaluated_at_once
from psgd.parallel.pipeline import Pipeline
from psgd.training.pieces.pipeline_passes import Batch, PipelinePasses

_WARM_UP = 3
"""Gradients after which all that a full batch needs is compiled and recorded."""


class CudaPipelineBackend(PipelinePasses):
    """On the GPUs of all ranks that hold one copy of the model. Implements `Backend`; all its calls are collective.

    Args:
        pipeline: of this rank, on its current GPU.
        stages: the pipeline's ranks.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
        tokens: of a sample that has a loss for each of them; else 1.
        keep: whether the dataset lies on the GPUs of the first and the last stage; None: if it fits.
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
        keep: bool | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        train, test = dataset.train, dataset.test
        at_once = max(1, min(evaluated_at_once(tokens, "cuda", in_pieces=True), test.samples))
        super().__init__(pipeline, test.samples, at_once)
        self._most, self._shape = min(batch_size, train.samples), dataset.sample_shape
        self._first = stages.Get_rank() == 0
        self._source: samples.Source | None = None
        if not (self._first or stages.Get_rank() == stages.Get_size() - 1):
            return
        self._steps = cupy.zeros(1, np.int64)  # that the GPU has taken, by which it finds the indices of a batch
        self._test: samples.Resident | samples.Streamed
        if samples.fits(train) if keep is None else keep:
            self._source = samples.Resident(train, statistics, self._most, self._steps)
            self._test = samples.Resident(test, statistics, self._at_once)
        else:
            self._source = samples.Streamed(train, statistics, self._most)
            self._test = samples.Streamed(test, statistics, self._at_once)
        most, features = max(self._most, self._at_once), int(np.prod(self._shape))
        self._x, self._y = cupy.empty((most, features), dtype), cupy.empty((most, *train.y.shape[1:]), np.int64)

    def prepare(self, params: Array) -> None:
        self.bind(params, cupy.zeros_like(params))
        rows = np.zeros(self._most, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        for _ in range(_WARM_UP):
            self.gradient(rows)
        self.gradient(rows[:1])
        self.evaluate(0, max(1, self._samples))
        self._pipeline.counters.clear()
        pinned.wait()

    def _batch(self, indices: NDArray[np.int64], touch: Callable[[Array], None] | None) -> Batch:
        if self._source is None:
            return None, None
        self._source.choose(indices)
        x, y = self._source.write(len(indices), self._x, self._y)
        if touch is not None and self._first:
            touch(x)
        return self._shaped(x), y

    def _ordered(self, start: int, stop: int) -> Batch:
        if self._source is None:
            return None, None
        x, y = self._test.ordered(start, stop, self._x, self._y)
        return self._shaped(x), y

    def _shaped(self, x: Array) -> Array:
        """Samples, of which one is a row, in the shape of the dataset's."""
        return x.reshape(len(x), *self._shape)

    def _used(self) -> None:
        if self._source is not None:
            self._steps += 1
            self._source.used()

    def wait(self) -> None:
        pinned.wait()
