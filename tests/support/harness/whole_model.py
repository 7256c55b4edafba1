"""A model in one process that cuts and sums as ranks do: what any product of pipeline, tensor and data must come to.

Layers are psgd's own, called one by one: BLAS bits change with shapes, so what is cut by tensor is cut here, too
(`harness.whole_tensor`). What ranks do between layers is written again in NumPy: microbatches, the order in which their
gradients are added, and the norm. `harness.simulation` has the data-parallel strategies and the rules on top of it.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.simulation import Gradient
from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.nn import sequential
from psgd.nn.layer import Room
from psgd.nn.layout import Layout

Vector = NDArray[Any]
Batches = Callable[[int, int], tuple[Vector, Vector]]
"""Samples and labels of a worker at its step of that number."""


class WholeModel:
    """Layers on one vector, fitted as in psgd.

    Args:
        layers, shape, dtype: as for `psgd.nn.model.Model`.

    Attributes:
        layout: of the vector, also where a part of it is cut.
        losses: by worker and clock, the mean loss of each gradient.
    """

    def __init__(self, layers: Sequence[Any], shape: Sequence[int], dtype: Any = np.float32) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self._steps, _ = sequential.fit(layers, self.shape)
        specs = [spec for step in self._steps for spec in step.specs]
        self.layout = Layout([(spec.name, spec.shape) for spec in specs])
        self.losses: dict[tuple[int, int], float] = {}

    def gradient_of(self, batches: Batches, sizes: Callable[[int], Sequence[int]], backward: str = "first") -> Gradient:
        """The gradient of the mean loss over a worker's batch, in microbatches.

        Args:
            batches: what there is.
            sizes: of the microbatches of so many samples; they add up to it.
            backward: whether the gradient of the `first` or of the `last` microbatch begins the sum.
        """

        def gradient(w: Vector, worker: int, clock: int) -> Vector:
            x, y = batches(worker, clock)
            cuts = np.cumsum([0, *sizes(len(x))]).tolist()
            assert cuts[-1] == len(x)
            parts = [slice(*cut) for cut in itertools.pairwise(cuts) if cut[0] < cut[1]]
            runs = [self._forward(w, x[part]) for part in parts]
            order = list(zip(runs, parts, strict=True))
            total, losses = np.zeros(self.layout.size, self.dtype), {}
            for number, (run, part) in enumerate(order if backward == "first" else order[::-1]):
                losses[part.start], own = self._backward(w, run, y[part], len(x))
                total = total + own if number else own
            self.losses[worker, clock] = float(np.cumsum([losses[start] for start in sorted(losses)])[-1])
            return total

        return gradient

    def _forward(self, w: Vector, x: Vector) -> tuple[list[Any], Vector]:
        states = sequential.allocate(self._steps, Room(np, len(x), self.dtype, self.shape, False))
        params = self.layout.views(w)
        for step, state in zip(self._steps, states, strict=True):
            x = step.layer.forward(state, x, tuple(params[spec.name] for spec in step.specs))
        return states, x

    def _backward(self, w: Vector, run: tuple[list[Any], Vector], y: Vector, batch: int) -> tuple[float, Vector]:
        states, logits = run
        dy = logits.copy()
        loss, _ = softmax_cross_entropy(dy, y.astype(np.int64), 1 / batch)
        own = np.zeros(self.layout.size, self.dtype)
        params, grads = self.layout.views(w), self.layout.views(own)
        for index in range(len(self._steps) - 1, sequential.first_with_parameters(self._steps) - 1, -1):
            step = self._steps[index]
            views = [tuple(each[spec.name] for spec in step.specs) for each in (params, grads)]
            dy = step.layer.backward(states[index], dy, *views)
        return loss / batch, own
