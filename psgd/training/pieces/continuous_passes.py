"""Many steps at once by a pipeline that is never empty, wherever it computes and wherever batches are made."""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.runtime.faults import Injector
from psgd.training.pieces.pipeline_passes import Batch, PipelinePasses


@dataclass(frozen=True)
class NumberedStep:
    """One of those that a pipeline takes without being drained.

    Attributes:
        key: by which layers draw.
        number: of the run, from 0.
        rows: of the training set.
    """

    key: int
    number: int
    rows: NDArray[np.int64]


class ContinuousPasses(PipelinePasses):
    """What a backend of a pipeline does otherwise for many steps at once: comes before it among the bases."""

    _vectors: tuple[Array, Array] = (None, None)

    @abstractmethod
    def _lasting(self, turn: int, rows: NDArray[np.int64], touch: Callable[[Array], None]) -> Batch:
        """Makes a batch of the training set that stays until its step is taken, where this rank needs it.

        Args:
            turn: how many were made before, of the same call of `train`.
            rows: of the training set.
            touch: called with the first stage's samples.
        """

    def bind(self, params: Array, grads: Array) -> None:
        super().bind(params, grads)
        self._vectors = params, grads

    def train(
        self, steps: Sequence[NumberedStep], take: Callable[[NumberedStep, float], None], injector: Injector
    ) -> None:
        """Takes these steps, and drains the pipeline. Collective over the copy, blocks.

        Args:
            steps: one or more, all of `batch_size` samples but the last.
            take: called after each step's gradient with it and its mean loss.
            injector: of faults.
        """
        pipeline = self._pipeline
        assert isinstance(pipeline, PipeDream)
        taken = iter(steps)
        began = time.perf_counter()

        def batches(index: int) -> Batch:
            step = steps[index]
            return self._lasting(index, step.rows, partial(injector.poison, step.number))

        def draws(index: int) -> tuple[int, Array]:
            injector.begin(steps[index].number)
            return steps[index].key, steps[index].rows

        def one(samples: int, loss: float) -> None:
            nonlocal began
            done = next(taken)
            if injector.slows:
                self.wait()
                injector.sleep(done.number, time.perf_counter() - began)
            take(done, loss)
            began = time.perf_counter()

        pipeline.steps(*self._vectors, sum(len(each.rows) for each in steps), batches, one, draws)
