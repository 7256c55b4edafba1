"""Where a worker's gradients are computed, as its training loop sees it."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array
from psgd.nn.model import Tally
from psgd.nn.stage import OnReady


class DrawsByStep(Protocol):
    """A backend of psgd's own layers, some of which may draw random numbers."""

    def begin(self, seed: int, epoch: int, step: int) -> None:
        """What the next gradients draw depends on these, and on each sample's number in the dataset."""


@runtime_checkable
class Tallies(Protocol):
    """A backend that says how each test sample was classified.

    Attributes:
        tally: is told while `evaluate` runs; None: nobody is.
    """

    tally: Tally | None


@runtime_checkable
class Repeats(Protocol):
    """A backend whose gradient changes more than the bound vector, such as the statistics of BatchNorm."""

    def again(self, indices: NDArray[np.int64], touch: Callable[[Array], None] | None = None) -> None:
        """Computes a gradient once more, as `Backend.gradient` does. All else stays as the first time has left it."""


class Backend(Protocol):
    """Model, data and buffers on one device."""

    def prepare(self, params: Array) -> None:
        """Compiles what a step needs before the clock starts."""

    def bind(self, params: Array, grads: Array) -> None:
        """Uses these vectors from now on."""

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> Any:
        """Overwrites the bound gradient with that over these samples; returns their mean loss, a number."""

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        """Right answers and summed loss on every `parts`-th batch of the test set from `part` on.

        Counted as `psgd.nn.model.Model.evaluate` does.
        """

    def wait(self) -> None:
        """Returns when all that was started is done."""
