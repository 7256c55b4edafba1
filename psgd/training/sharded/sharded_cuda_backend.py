"""Gradients on a GPU of a model whose units come and go with an exchange."""

from psgd.backend.cuda import CudaBackend
from psgd.kernels.array import Array
from psgd.training.sharded.shared_passes import Passes


class ShardedCudaBackend(Passes, CudaBackend):
    """On the current GPU. Implements `Backend`. Nothing is captured: the host waits for units in between."""

    def prepare(self, params: Array) -> None:
        super().prepare(params)
        self._exchange.gathers.changed()  # a checkpoint's values may follow
