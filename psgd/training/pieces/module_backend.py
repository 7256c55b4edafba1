"""Gradients of a PyTorch module in pieces, computed by a pipeline of its stages."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array, address
from psgd.nn.stage import OnReady
from psgd.torch.pieces.module_pipeline import ModulePipeline
from psgd.training.pieces.pipeline_backend import PipelineBackend
from psgd.training.pieces.pipeline_passes import PipelinePasses
from psgd.training.torch_backend import untouched


class OfModule(PipelinePasses):
    """What a backend of a pipeline does otherwise for a module: comes before it among the bases.

    Attributes:
        module: this rank's part.
    """

    module: ModulePipeline

    def prepare(self, params: Array) -> None:
        """Also runs a step; the module is as before then."""
        with untouched(self.module.module):
            super().prepare(params)  # type: ignore[misc]  # of the backend behind it
        self.module.zero_grad()

    def bind(self, params: Array, grads: Array) -> None:
        module = self.module
        if address(module.params) != address(params):
            module.bind(params, grads)
        super().bind(module.params, module.grads)

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> float:
        self.module.zero_grad()
        return super().gradient(indices, on_ready, touch)


class ModuleBackend(OfModule, PipelineBackend):
    """As `PipelineBackend`, with stages of a PyTorch module.

    Args:
        module: this rank's part.
        stages, dataset, statistics, batch_size: as `PipelineBackend`.
    """

    def __init__(
        self, module: ModulePipeline, stages: Any, dataset: Dataset, statistics: Statistics, batch_size: int
    ) -> None:
        dtype = module.pipeline.stages[0].dtype
        super().__init__(module.pipeline, stages, dataset, statistics, batch_size, dtype=dtype)
        self.module = module
