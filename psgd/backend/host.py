"""Gradients computed on this process's cores."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from psgd.data import Dataset
from psgd.data.batches import Batches
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.evaluation import evaluated_at_once
from psgd.nn.model import Model, Tally
from psgd.nn.stage import OnReady
from psgd.runtime.rng import bits


class HostBackend:
    """On this process's cores. Implements `Backend`.

    Args:
        model: what is trained.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
    """

    def __init__(self, model: Model, dataset: Dataset, statistics: Statistics, batch_size: int) -> None:
        self._model, self._batch_size = model, batch_size
        self._batches = Batches(dataset.train, statistics, batch_size)
        self._at_once = evaluated_at_once(model.tokens)
        self._test = Batches(dataset.test, statistics, self._at_once)
        self._context = model.context(batch_size)
        self._test_context = model.context(self._at_once, trains=False)
        self._key: int | None = None
        self.tally: Tally | None = None

    def prepare(self, params: Array) -> None:
        self.bind(params, np.zeros_like(params))
        rows = np.zeros(1, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        self._context.draw(0, rows)
        self.gradient(rows)
        self._test.ordered(0, min(1, self._test.samples))

    def begin(self, seed: int, epoch: int, step: int) -> None:
        if self._context.draws.wanted:
            self._key = bits(seed, "step", epoch, step)

    def bind(self, params: Array, grads: Array) -> None:
        self._model.bind(params, grads)

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> float:
        x, y = self._batches.fetch(indices)
        if touch is not None:
            touch(x)
        if self._key is not None:
            self._context.draw(self._key, indices)
        return self._model.gradient(self._context, x, y, on_ready)

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        correct, loss_sum = 0.0, 0.0
        for start in range(part * self._at_once, self._test.samples, parts * self._at_once):
            x, y = self._test.ordered(start, min(start + self._at_once, self._test.samples))
            right, loss = self._model.evaluate(self._test_context, x, y, self.tally)
            correct += right
            loss_sum += loss
        return correct, loss_sum

    def wait(self) -> None:
        pass
