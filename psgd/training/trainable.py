"""What a run trains, as its loop sees it; and psgd's own models as such."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from psgd.backend.interface import Backend, DrawsByStep
from psgd.checkpoint import export
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.nn.model import Model
from psgd.optim.host_updates import HostUpdates
from psgd.training import preparation


class Trainable(Protocol):
    """A model of any library, from its first parameters to its final ones.

    Attributes:
        layout: names and shapes in the vector.
    """

    layout: Layout

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        """This rank's parameters: a worker's hold its first ones now, every rank's the final ones after the run."""

    def connected(self, vector: Array) -> Any:
        """What `psgd.connect` takes: that vector, or a model that has it."""

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        """Where a worker computes its gradients."""

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """A worker begins a step: what it draws in it depends on these numbers alone."""

    def agreed(self, stop: bool) -> bool:
        """Whether any of the ranks says so that hold this copy of the model together: all of them get one answer."""

    def save(self, path: Path, vector: Array) -> None:
        """Writes the final weights under their names. Raises UsageError where it cannot."""


class OwnModel:
    """A model of psgd's own layers. Implements `Trainable`.

    Args:
        model: on no vector yet.

    Attributes:
        updates: who takes a lone worker's steps by parts (`--offload`); set before `backend` is called.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.layout = model, model.layout
        self.updates: HostUpdates | None = None
        self._draws: DrawsByStep | None = None

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        return np.empty(self.layout.size, np.float32) if serves else preparation.first_params(config, self.model)

    def connected(self, vector: Array) -> Any:
        return vector

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        self._draws = made = preparation.backend(config, self.model, dataset, statistics, self.updates)
        return made

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """What its layers draw is by sample, so the worker does not matter."""
        if self._draws is not None:
            self._draws.begin(seed, epoch, step)

    def agreed(self, stop: bool) -> bool:
        return stop

    def save(self, path: Path, vector: Array) -> None:
        export.write(path, vector, self.layout, "--save")


def own(model: Model, shape: Sequence[int], classes: int, tokens: bool = False) -> OwnModel:
    """A model that a user's function made, if it takes such samples.

    Raises:
        UsageError: another shape of samples, too few scores, or another dtype.
    """
    if model.input_shape != tuple(shape):
        raise UsageError(f"expected a model for samples of shape {tuple(shape)}, got one for {model.input_shape}")
    if len(model.output_shape) != 1 + tokens:
        raise UsageError(
            f"expected scores for each {'token' if tokens else 'sample'}, got outputs of shape {model.output_shape}"
        )
    if model.classes < classes:
        raise UsageError(f"expected a model with a score for each of {classes} classes, got {model.classes}")
    if model.dtype != np.float32:
        raise UsageError(f"expected a float32 model, got {model.dtype}")
    return OwnModel(model)
