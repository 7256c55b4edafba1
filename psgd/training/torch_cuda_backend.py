"""Gradients of a PyTorch module on a GPU: batches are made there, and losses stay there until they are asked for."""

from collections.abc import Callable

import cupy
import numpy as np
import torch
from numpy.typing import NDArray

from psgd.backend import pinned, samples
from psgd.backend.losses import Loss, Losses
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array, address
from psgd.nn.stage import OnReady
from psgd.torch.same_memory import array_of, tensor_of
from psgd.torch.wrapped import Wrapped
from psgd.training.torch_backend import LossOf, evaluating, input_dtype, untouched

_AT_ONCE = 1000
"""Most samples that are evaluated together."""


class TorchCudaBackend:
    """Implements `psgd.backend.interface.Backend`. Nothing waits for the GPU, where neither module nor loss does.

    Args:
        model: wrapped, on the current GPU; a connection binds it to the vectors of a run.
        loss: of the module's output and int64 labels: their mean over the batch.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
        keep: whether the dataset lies on the GPU; None: if it fits.
    """

    def __init__(
        self,
        model: Wrapped,
        loss: LossOf,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        keep: bool | None = None,
    ) -> None:
        model.follow()
        self._model, self._module, self._loss = model, model.module, loss
        self._kind, self._shape = input_dtype(model.module), dataset.sample_shape
        self._losses = Losses()
        train, test = dataset.train, dataset.test
        self._at_once = max(1, min(_AT_ONCE, test.samples))
        self._source: samples.Source
        self._test: samples.Resident | samples.Streamed
        if samples.fits(train) if keep is None else keep:
            self._source = samples.Resident(train, statistics, batch_size, self._losses.steps)
            self._test = samples.Resident(test, statistics, self._at_once)
        else:
            self._source = samples.Streamed(train, statistics, batch_size)
            self._test = samples.Streamed(test, statistics, self._at_once)
        wide = np.float64 if self._kind == torch.float64 else np.float32
        most, features = max(batch_size, self._at_once), int(np.prod(self._shape))
        self._batch_size = batch_size
        self._x, self._y = cupy.empty((most, features), wide), cupy.empty(most, np.int64)
        self._tensors: dict[int, torch.Tensor] = {}  # by address, of what batches are made in

    def prepare(self, params: Array) -> None:
        """Also runs one step, so that what PyTorch loads at the first is loaded; the module is as before then."""
        rows = np.zeros(self._batch_size, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        with untouched(self._module):
            self.gradient(rows)
        self._model.zero_grad()
        if self._test.samples:
            self._test.ordered(0, 1, self._x, self._y)
        pinned.wait()

    def bind(self, params: Array, grads: Array) -> None:
        if address(self._model.params) != address(params):
            self._model.bind(params, grads)

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> Loss:
        n = len(indices)
        self._source.choose(indices)
        x, y = self._source.write(n, self._x, self._y)
        if touch is not None:
            touch(x)
        loss = self._step(x, y)
        self._source.used()
        self._losses.put(array_of(loss.detach().reshape(1).double()))
        return self._losses.newest()

    def _step(self, x: Array, y: Array) -> torch.Tensor:
        """Forward and backward; returns the loss."""
        self._model.zero_grad()
        loss = self._loss(self._module(self._samples(x)), self._tensor(y))
        loss.backward()
        return loss

    def evaluate(self, part: int, parts: int) -> tuple[int, float]:
        """The module is in its mode for evaluation meanwhile."""
        correct, loss_sum = 0, 0.0
        with evaluating(self._module), torch.no_grad():
            for start in range(part * self._at_once, self._test.samples, parts * self._at_once):
                stop = min(start + self._at_once, self._test.samples)
                x, y = self._test.ordered(start, stop, self._x, self._y)
                labels = self._tensor(y)
                scores = self._module(self._samples(x))
                correct += int((scores.argmax(1) == labels).sum())
                loss_sum += self._loss(scores, labels).item() * (stop - start)
        return correct, loss_sum

    def wait(self) -> None:
        pinned.wait()

    def _samples(self, x: Array) -> torch.Tensor:
        return self._tensor(x).reshape(len(x), *self._shape).to(self._kind)

    def _tensor(self, array: Array) -> torch.Tensor:
        """The first rows of one of few buffers, of which each is made a tensor once."""
        at = address(array)
        whole = self._tensors.get(at)
        if whole is None or len(whole) < len(array):
            whole = self._tensors[at] = tensor_of(array)
        return whole[: len(array)]
