"""Gradients on GPUs by a pipeline whose stages are shared by the copies."""

from psgd.kernels.array import Array
from psgd.training.pieces.cuda_pipeline_backend import CudaPipelineBackend
from psgd.training.sharded.sharded_pipeline_backend import Together


class ShardedCudaPipelineBackend(Together, CudaPipelineBackend):
    """On the GPUs of all ranks. Implements `Backend`."""

    def prepare(self, params: Array) -> None:
        super().prepare(params)
        self._pipeline.exchange.gathers.changed()  # a checkpoint's values may follow
