"""Gradients on a GPU of a PyTorch module whose units come and go."""

from typing import Any

import numpy as np
import torch

from psgd.backend import pinned
from psgd.kernels.array import Array
from psgd.training.torch_backend import evaluating, untouched
from psgd.training.torch_cuda_backend import TorchCudaBackend


class ShardedCudaModuleBackend(TorchCudaBackend):
    """As `TorchCudaBackend`; in stage 3 all workers evaluate together, in as many passes each.

    Args:
        model: shared out, on the current GPU; in the block of `psgd.connect`.
        loss, dataset, statistics, batch_size, keep: as of `TorchCudaBackend`.
    """

    _model: Any

    def prepare(self, params: Array) -> None:
        """Also runs a forward pass, so that what PyTorch loads at the first is loaded. Collective in stage 3."""
        rows = np.zeros(self._batch_size, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        with untouched(self._module), torch.no_grad():
            self.gradient(rows)
        if self._test.samples:
            self._test.ordered(0, 1, self._x, self._y)
        pinned.wait()

    def bind(self, params: Array, grads: Array) -> None:
        """Nothing: parameters and gradients are where the sharded module has them."""

    def evaluate(self, part: int, parts: int) -> tuple[int, float]:
        result = super().evaluate(part, parts)
        samples, step = self._test.samples, self._at_once
        mine = len(range(part * step, samples, parts * step))
        for _ in range(mine, len(range(0, samples, parts * step)) if self._model.sharding.stage == 3 else 0):
            with evaluating(self._module), torch.no_grad():  # others need this worker's part
                self._module(self._samples(self._test.ordered(0, 1, self._x, self._y)[0]))
        return result

    def _step(self, x: Array, y: Array) -> torch.Tensor:
        loss = self._loss(self._module(self._samples(x)), self._tensor(y))
        if torch.is_grad_enabled():  # else the run has not begun, and nobody has announced a pass
            loss.backward()
        return loss
