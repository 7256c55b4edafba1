"""Gradients of a PyTorch module in pieces on GPUs, computed by a pipeline of its stages, and steps of one."""

from typing import Any

from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.torch.pieces.module_pipeline import ModulePipeline
from psgd.training.pieces.cuda_continuous_backend import CudaContinuousBackend
from psgd.training.pieces.cuda_pipeline_backend import CudaPipelineBackend
from psgd.training.pieces.module_backend import OfModule


class CudaModuleBackend(OfModule, CudaPipelineBackend):
    """As `CudaPipelineBackend`, with stages of a PyTorch module.

    Args:
        module: this rank's part, on its current GPU.
        stages, dataset, statistics, batch_size, keep: as `CudaPipelineBackend`.
    """

    def __init__(
        self,
        module: ModulePipeline,
        stages: Any,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        keep: bool | None = None,
    ) -> None:
        dtype = module.pipeline.stages[0].dtype
        super().__init__(module.pipeline, stages, dataset, statistics, batch_size, keep=keep, dtype=dtype)
        self.module = module


class CudaContinuousModuleBackend(OfModule, CudaContinuousBackend):
    """As `CudaContinuousBackend`, with a stage of a PyTorch module.

    Args:
        module: this rank's part, on its current GPU.
        pipeline: of it.
        stages, dataset, statistics, batch_size, keep: as `CudaContinuousBackend`.
    """

    def __init__(
        self,
        module: ModulePipeline,
        pipeline: PipeDream,
        stages: Any,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        keep: bool | None = None,
    ) -> None:
        dtype = pipeline.stages[0].dtype
        super().__init__(pipeline, stages, dataset, statistics, batch_size, keep=keep, dtype=dtype)
        self.module = module
