"""Gradients and evaluations by a pipeline, wherever it computes and wherever batches are made."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array
from psgd.nn.model import Tally
from psgd.nn.stage import OnReady
from psgd.parallel.pipeline import Pipeline
from psgd.runtime.rng import bits

Batch = tuple[Array, Array]
"""Samples and labels; None on ranks that need none."""


class PipelinePasses(ABC):
    """What backends of pipelines have in common. All calls are collective.

    Args:
        pipeline: of this rank.
        samples: of the test set.
        at_once: most samples that are evaluated together.
    """

    def __init__(self, pipeline: Pipeline, samples: int, at_once: int) -> None:
        self._pipeline, self._key = pipeline, 0
        self._samples, self._at_once = samples, at_once

    @abstractmethod
    def _batch(self, indices: NDArray[np.int64], touch: Callable[[Array], None] | None) -> Batch:
        """Makes a batch of the training set, where this rank needs it; `touch` is called with the first stage's."""

    @abstractmethod
    def _ordered(self, start: int, stop: int) -> Batch:
        """Samples of the test set, where this rank needs them."""

    @abstractmethod
    def wait(self) -> None:
        """As `psgd.backend.interface.Backend`."""

    def _used(self) -> None:  # noqa: B027 -- most have nothing to do then
        """The gradient that uses the batch is computed, or will be."""

    @property
    def tally(self) -> Tally | None:
        """What `evaluate` tells of labels and predictions, on the last stage's rank."""
        return self._pipeline.tally

    @tally.setter
    def tally(self, tally: Tally | None) -> None:
        self._pipeline.tally = tally

    def begin(self, seed: int, epoch: int, step: int) -> None:
        """As `psgd.backend.interface.DrawsByStep`."""
        self._key = bits(seed, "step", epoch, step)

    def bind(self, params: Array, grads: Array) -> None:
        """As `psgd.backend.interface.Backend`, as are the following."""
        self._pipeline.bind(params, grads)

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> float:
        x, y = self._batch(indices, touch)
        self._pipeline.draw(self._key, indices)
        loss = self._pipeline.gradient(len(indices), x, y, on_ready)
        self._used()
        return loss

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        correct, loss_sum = 0.0, 0.0
        for start in range(part * self._at_once, self._samples, parts * self._at_once):
            stop = min(start + self._at_once, self._samples)
            right, loss = self._pipeline.evaluate(stop - start, *self._ordered(start, stop))
            correct += right
            loss_sum += loss
        return correct, loss_sum
