"""Gradients of a PyTorch module, computed by autograd on this process's cores."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.data import Dataset
from psgd.data.batches import Batches
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.evaluation import EVALUATION_BATCH
from psgd.nn.model import Tally
from psgd.nn.stage import OnReady
from psgd.torch.wrapped import Wrapped

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TorchBackend:
    """Implements `psgd.backend.interface.Backend` and `Repeats`. Autograd's hooks announce what is final, not this.

    Args:
        model: wrapped; a connection binds it to the vectors of a run.
        loss: of the module's output and int64 labels: their mean over the batch.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
    """

    def __init__(self, model: Wrapped, loss: LossOf, dataset: Dataset, statistics: Statistics, batch_size: int) -> None:
        self._model, self._module, self._loss = model, model.module, loss
        self._kind = input_dtype(model.module)
        wide = np.float64 if self._kind == torch.float64 else np.float32
        self._batches = Batches(dataset.train, statistics, batch_size, wide)
        self.tally: Tally | None = None
        self._test = Batches(dataset.test, statistics, EVALUATION_BATCH, wide)

    def prepare(self, params: Array) -> None:
        """Also runs one step, so that what PyTorch loads at the first is loaded; the module is as before then."""
        rows = np.zeros(1, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        x, y = self._batches.fetch(rows)
        with untouched(self._module):
            self._loss(self._module(self._tensor(x)), torch.from_numpy(y)).backward()
        self._model.zero_grad()
        self._test.ordered(0, min(1, self._test.samples))

    def bind(self, params: Array, grads: Array) -> None:
        if self._model.params.ctypes.data != params.ctypes.data:
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
        self._model.zero_grad()
        loss = self._loss(self._module(self._tensor(x)), torch.from_numpy(y))
        loss.backward()
        return float(loss.item())

    def again(self, indices: NDArray[np.int64], touch: Callable[[Array], None] | None = None) -> None:
        kept = self._model.kept()
        self.gradient(indices, None, touch)
        self._model.gather()
        self._model.put_back(kept)

    def evaluate(self, part: int, parts: int) -> tuple[int, float]:
        """The module is in its mode for evaluation meanwhile."""
        correct, loss_sum = 0, 0.0
        with evaluating(self._module), torch.no_grad():
            for start in range(part * EVALUATION_BATCH, self._test.samples, parts * EVALUATION_BATCH):
                x, y = self._test.ordered(start, min(start + EVALUATION_BATCH, self._test.samples))
                labels = torch.from_numpy(y)
                scores = self._module(self._tensor(x))
                predicted = scores.argmax(1)
                correct += int((predicted == labels).sum())
                if self.tally is not None:
                    self.tally(y, predicted.numpy())
                loss_sum += self._loss(scores, labels).item() * len(y)
        return correct, loss_sum

    def wait(self) -> None:
        pass

    def _tensor(self, x: Array) -> torch.Tensor:
        return torch.from_numpy(x).to(self._kind)


def input_dtype(module: torch.nn.Module) -> torch.dtype:
    """What samples are converted to: as the module's first parameter of real numbers."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def place_of(module: torch.nn.Module) -> torch.device:
    """Where samples have to be: with the module's first parameter."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Inside, the module and its parts are in their mode for evaluation; then each is again as it was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextlib.contextmanager
def untouched(module: torch.nn.Module) -> Iterator[None]:
    """As `evaluating`; and whatever happens inside, its buffers and PyTorch's random numbers are then as before."""
    before: list[tuple[Any, Any]] = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    place = place_of(module)
    with torch.random.fork_rng(devices=[place.index] if place.type == "cuda" else []), evaluating(module):
        yield
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
