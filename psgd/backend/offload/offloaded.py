"""Gradients on a GPU for vectors on the host. What the bus carries, `kept_layers` and `streamed_layers` say."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.backend.cuda import CudaBackend
from psgd.backend.offload.bus import CudaBus
from psgd.backend.offload.kept_layers import KeptLayers
from psgd.backend.offload.streamed_layers import StreamedLayers
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.model import Model
from psgd.nn.stage import OnReady
from psgd.optim.host_updates import HostUpdates


class OffloadedBackend(CudaBackend):
    """A worker's model and data on the current GPU. Implements `psgd.backend.interface.Backend`.

    The vectors that it is bound to are NumPy's. Graphs are of single layers, since parts of a gradient are handed over
    while others are computed.

    Args:
        model: what is trained, on no vector yet.
        dataset: train and test.
        statistics: of the training set.
        batch_size: most samples of a step.
        keep: whether the dataset lies on the GPU; None: if it fits.
        what: `optimizer` keeps parameters and gradient on the GPU, `parameters` two layers of each.
        updates: who takes steps by parts; None: a step changes all parameters before the next gradient.
        behind: how many updates a gradient's parameters are behind, 0 or 1; 1 only with `optimizer` and `updates`.
    """

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        keep: bool | None = None,
        *,
        what: str = "optimizer",
        updates: HostUpdates | None = None,
        behind: int = 0,
    ) -> None:
        bus = CudaBus()
        self._layers: KeptLayers | StreamedLayers = (
            KeptLayers(model, bus, updates, behind) if what == "optimizer" else StreamedLayers(model, bus, updates)
        )
        super().__init__(self._layers.model, dataset, statistics, batch_size, keep)

    def bind(self, params: Array, grads: Array) -> None:
        self._layers.bind(params, grads)

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> Any:
        """What `Backend.gradient` says; blocks until the gradient is on the host."""
        self._source.choose(indices)
        if self._key is not None:
            self._context.draw(self._key, indices)
        self._layers.begin(on_ready)
        self._run(len(indices), self._layers.ready, touch)
        self._layers.finish()
        self._source.used()
        return float(self._losses.newest())  # which the GPU has computed by now

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        self._layers.begin()
        return super().evaluate(part, parts)
