"""One rank's part of a PyTorch module in pieces, as what a run trains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psgd.backend.interface import Backend
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.schedules.schedule import Schedule
from psgd.torch.pieces.module_pipeline import ModulePipeline
from psgd.training.pieces import module_state
from psgd.training.pieces.model_in_pieces import CutModel
from psgd.training.pieces.module_backend import ModuleBackend


class CutModule(CutModel):
    """One rank's part of a PyTorch module. Implements `Trainable`.

    Args:
        module: the part.
        tensor, mesh, schedule: as `CutModel`.
        names: of the whole's state dict.
    """

    def __init__(
        self, module: ModulePipeline, tensor: Communicator, mesh: ProcessMesh, schedule: Schedule, names: Sequence[str]
    ) -> None:
        super().__init__(module.pipeline, tensor, mesh, schedule, module.whole)
        self._module, self._names = module, names

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        return self._module.params

    def connected(self, vector: Array) -> Any:
        return self._module

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        common = self._module, self.mesh.pipe, dataset, statistics, config.batch_size
        if config.device == "cpu":
            self._draws = made = ModuleBackend(*common)
            return made
        from psgd.training.pieces.cuda_module_backend import CudaModuleBackend

        keep = None if config.data_device == "auto" else config.data_device == "cuda"
        self._draws = there = CudaModuleBackend(*common, keep)
        return there

    def save(self, path: Path, vector: Array) -> None:
        """Writes the whole module's state_dict, one tensor at a time. Collective over the first copy."""
        module_state.write(path, self._module.module, self._names, self.mesh.replica, "--save")
