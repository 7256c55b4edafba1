"""Gradients computed by a pipeline on GPUs: the first stage's samples and the last one's labels are made there."""

from collections.abc import Callable

import cupy
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.backend import pinned, samples
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.evaluation import evaluated_at_once
from psgd.nn.model import Tally
from psgd.nn.stage import OnReady
from psgd.parallel.pipeline import Pipeline
from psgd.runtime.rng import bits

_WARM_UP = 3
"""Gradients after which all that a full batch needs is compiled and recorded."""


class CudaPipelineBackend:
    """On the GPUs of all ranks that hold one copy of the model. Implements `Backend`; all its calls are collective.

    Args:
        pipeline: of this rank, on its current GPU.
        stages: the pipeline's ranks.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
        tokens: of a sample that has a loss for each of them; else 1.
        keep: whether the dataset lies on the GPUs of the first and the last stage; None: if it fits.
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
    ) -> None:
        self._pipeline, self._key = pipeline, 0
        train, test = dataset.train, dataset.test
        self._most, self._samples = min(batch_size, train.samples), test.samples
        self._at_once = max(1, min(evaluated_at_once(tokens, "cuda", in_pieces=True), test.samples))
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
        most, features = max(self._most, self._at_once), int(np.prod(dataset.sample_shape))
        self._x, self._y = cupy.empty((most, features), np.float32), cupy.empty((most, *train.y.shape[1:]), np.int64)

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

    @property
    def tally(self) -> Tally | None:
        """What `evaluate` tells of labels and predictions, on the last stage's rank."""
        return self._pipeline.tally

    @tally.setter
    def tally(self, tally: Tally | None) -> None:
        self._pipeline.tally = tally

    def begin(self, seed: int, epoch: int, step: int) -> None:
        self._key = bits(seed, "step", epoch, step)

    def bind(self, params: Array, grads: Array) -> None:
        self._pipeline.bind(params, grads)

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> float:
        x, y, n = None, None, len(indices)
        if self._source is not None:
            self._source.choose(indices)
            x, y = self._source.write(n, self._x, self._y)
            if touch is not None and self._first:
                touch(x)
        self._pipeline.draw(self._key, indices)
        loss = self._pipeline.gradient(n, x, y, on_ready)
        if self._source is not None:
            self._steps += 1
            self._source.used()
        return loss

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        correct, loss_sum = 0.0, 0.0
        for start in range(part * self._at_once, self._samples, parts * self._at_once):
            stop, x, y = min(start + self._at_once, self._samples), None, None
            if self._source is not None:
                x, y = self._test.ordered(start, stop, self._x, self._y)
            right, loss = self._pipeline.evaluate(stop - start, x, y)
            correct += right
            loss_sum += loss
        return correct, loss_sum

    def wait(self) -> None:
        pinned.wait()
