"""Gradients on a GPU: a step's kernels, captured once as a CUDA graph and then started by one call."""

from collections.abc import Callable
from functools import partial
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from psgd.backend import pinned, samples
from psgd.backend.losses import Loss, Losses
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array, array_module
from psgd.kernels.device.graphs import GraphRecorder, wanted
from psgd.nn.evaluation import evaluated_at_once
from psgd.nn.model import Model, Tally
from psgd.nn.stage import OnReady
from psgd.runtime.rng import bits


class CudaBackend:
    """A worker's model, data and buffers on the current GPU. Implements `psgd.backend.interface.Backend`.

    Args:
        model: what is trained.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
        keep: whether the dataset lies on the GPU; None: if it fits.
    """

    def __init__(
        self, model: Model, dataset: Dataset, statistics: Statistics, batch_size: int, keep: bool | None = None
    ) -> None:
        self._model = model
        self._losses = Losses()
        resident = samples.fits(dataset.train) if keep is None else keep
        self._source: samples.Source = (
            samples.Resident(dataset.train, statistics, batch_size, self._losses.steps)
            if resident
            else samples.Streamed(dataset.train, statistics, batch_size)
        )
        test = samples.Resident if resident else samples.Streamed
        self._at_once = max(1, min(evaluated_at_once(model.tokens, "cuda"), dataset.test.samples))
        self._test = test(dataset.test, statistics, self._at_once)
        self._statistics = statistics
        self._features = int(np.prod(dataset.sample_shape))
        self._batch_size = batch_size
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._recorder = GraphRecorder() if wanted() else None
        self._place: tuple[int, int] = (0, 0)
        self._key: int | None = None
        self.tally: Tally | None = None

    def prepare(self, params: Array) -> None:
        self.bind(params, array_module(params).zeros_like(params))
        self._context = self._model.context(self._batch_size)
        self._test_context = self._model.context(self._at_once, trains=False)
        self._x = cupy.empty((self._batch_size, self._features), self._model.dtype)
        self._test_x = cupy.empty((self._at_once, self._features), self._model.dtype)
        rows = np.zeros(self._batch_size, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        self._context.draw(0, rows)
        for _ in range(2):
            self.gradient(rows[:4])
        self.gradient(rows)
        self.evaluate(0, max(1, self._test.samples))
        pinned.wait()

    def begin(self, seed: int, epoch: int, step: int) -> None:
        if self._context.draws.wanted:
            self._key = bits(seed, "step", epoch, step)

    def bind(self, params: Array, grads: Array) -> None:
        self._model.bind(params, grads)
        self._place = params.data.ptr, grads.data.ptr

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> Loss:
        """Starts what `Backend.gradient` says; blocks only where the host is far ahead, or when the loss is read.

        With `on_ready` or `touch` nothing is captured.
        """
        n = len(indices)
        key = (n, self._source.choose(indices), *self._place)
        if self._key is not None:
            self._context.draw(self._key, indices)  # ahead of the graph, which reads what this has written
        if on_ready is not None or touch is not None or self._recorder is None:
            self._run(n, on_ready, touch)
        elif key not in self._graphs:
            self._graphs[key] = None  # the first time things are compiled and loaded, which no graph may do
            self._run(n)
        else:
            self._graphs[key] = graph = self._graphs[key] or self._recorder.record(partial(self._run, n))
            graph.launch(cupy.cuda.get_current_stream())
        self._source.used()
        return self._losses.newest()

    def _run(self, n: int, on_ready: OnReady | None = None, touch: Callable[[Array], None] | None = None) -> None:
        x, y = self._source.write(n, self._x, self._context.labels)
        if touch is not None:
            touch(x)
        self._model.gradient(self._context, x, y, on_ready, self._losses.start)

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        correct, loss = 0.0, 0.0
        for start in range(part * self._at_once, self._test.samples, parts * self._at_once):
            stop = min(start + self._at_once, self._test.samples)
            x, y = self._test.ordered(start, stop, self._test_x, self._test_context.labels)
            right, more = self._model.evaluate(self._test_context, x, y, self.tally)
            correct, loss = correct + right, loss + more
        return correct, loss

    def wait(self) -> None:
        pinned.wait()
