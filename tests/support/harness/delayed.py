"""Updates by gradients of older weights, in one process, without a pipeline or a schedule."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from psgd.nn.model import Model
from psgd.optim.optimizer import Optimizer, OptimizerOptions


class Step(NamedTuple):
    """A step's samples and labels; by which key and numbers layers draw, None where none does."""

    x: Any
    y: Any
    key: int | None = None
    numbers: Any = None


class Simulation:
    """A model in stages, all in this process.

    Args:
        model: the whole.
        cuts: where stages begin.
        options: of the optimizer of each stage.
        seed: of the first parameters.
        size: samples of a microbatch.
        xp: NumPy, or CuPy to compute on the current GPU.

    Attributes:
        params: of each stage.
        position: samples of all steps.
    """

    def __init__(
        self, model: Model, cuts: Sequence[int], options: OptimizerOptions, seed: int, size: int, xp: Any = np
    ) -> None:
        ends = (0, *cuts, len(model.layers))
        self.stages = [model.cut(a, b) for a, b in itertools.pairwise(ends)]
        self.params = [xp.asarray(stage.init(seed)) for stage in self.stages]
        self.position, self._size, self._xp = 0, size, xp
        self._optimizers = [Optimizer(params, options) for params in self.params]
        for stage, params in zip(self.stages, self.params, strict=True):
            stage.bind(params)
        self._contexts = [stage.context(size, wants_dx=index > 0) for index, stage in enumerate(self.stages)]

    def run(self, steps: Sequence[Step], delay: Callable[[int, int, int], int]) -> float:
        """Takes the steps of a pipeline that is empty before and behind them; returns the samples' mean loss.

        Args:
            steps: one or more.
            delay: of stage, step and microbatch, counted from here: after how many steps the weights are that its
                passes use.
        """
        history = [[params.copy()] for params in self.params]
        grads = [np.zeros_like(params) for params in self.params]
        total, samples, microbatch = 0.0, 0, 0
        stages, contexts, size = self.stages, self._contexts, self._size
        for number, step in enumerate(steps):
            losses = []
            n = len(step.x)
            for start in range(0, n, size):
                for index, stage in enumerate(stages):
                    stage.bind(history[index][delay(index, number, microbatch)], grads[index])
                z = self._xp.asarray(step.x[start : start + size])
                if step.key is not None:
                    for context in contexts:
                        context.draw(step.key, step.numbers[start : start + size])
                for stage, context in zip(stages, contexts, strict=True):
                    z = stage.forward(context, z)
                labels = self._xp.asarray(step.y[start : start + size])
                dy, loss = stages[-1].loss(contexts[-1], labels, batch_size=n)
                losses.append(loss)
                for stage, context in zip(stages[::-1], contexts[::-1], strict=True):
                    dy = stage.backward(context, dy, accumulate=start > 0)
                microbatch += 1
            for index, optimizer in enumerate(self._optimizers):
                optimizer.take(grads[index], 1.0, self.position)
                history[index].append(self.params[index].copy())
            total, samples = total + sum(losses) * n, samples + n
            self.position += n
        return total / samples


def stashed(ranks: int, every: int = 1) -> Callable[[int, int, int], int]:
    """The delay of PipeDream with so many microbatches a step."""
    return lambda stage, step, microbatch: max(0, microbatch - (ranks - stage) + 1) // every


def two_versions(stage: int, step: int, microbatch: int) -> int:
    """The delay of 2BW."""
    return max(0, step - 1)
