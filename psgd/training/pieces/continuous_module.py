"""`--pipe-schedule pipedream` with a PyTorch module: its stages take their steps without waiting for each other."""

from typing import Any

from psgd.backend.interface import Backend
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.torch.pieces.module_pipeline import ModulePipeline
from psgd.training.pieces.continuous_training import ContinuousBackend, WithoutFlushes
from psgd.training.pieces.module_backend import OfModule
from psgd.training.pieces.module_part import CutModule


class ContinuousModuleBackend(OfModule, ContinuousBackend):
    """As `ContinuousBackend`, with a stage of a PyTorch module.

    Args:
        module: this rank's part.
        pipeline: of it.
        stages, dataset, statistics, batch_size: as `ContinuousBackend`.
    """

    def __init__(
        self,
        module: ModulePipeline,
        pipeline: PipeDream,
        stages: Any,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
    ) -> None:
        dtype = pipeline.stages[0].dtype
        super().__init__(pipeline, stages, dataset, statistics, batch_size, dtype=dtype)
        self.module = module


class ContinuousModule(WithoutFlushes, CutModule):
    """One rank's part of a PyTorch module whose pipeline is never empty. Implements `Trainable`.

    Args:
        module, tensor, mesh, schedule, names: as `CutModule`.

    Attributes:
        epoch: microbatches of an epoch.
    """

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        batch, pipeline = min(config.batch_size, dataset.train.samples), self._module.pipeline
        assert isinstance(pipeline, PipeDream)
        common = self._module, pipeline, self.mesh.pipe, dataset, statistics, batch
        if config.device == "cpu":
            return ContinuousModuleBackend(*common)
        from psgd.training.pieces.cuda_module_backend import CudaContinuousModuleBackend

        keep = None if config.data_device == "auto" else config.data_device == "cuda"
        return CudaContinuousModuleBackend(*common, keep)
