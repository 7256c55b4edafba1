"""One rank's part of a PyTorch module in pieces, as what a run trains."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from psgd.backend.interface import Backend
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.parallel.cuts.decision import Decision, Timed
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.schedule import Schedule
from psgd.runtime.agreement import agree
from psgd.torch.pieces import layer_costs
from psgd.torch.pieces.by_tensor import cut_by_tensor
from psgd.torch.pieces.module_pipeline import ModulePipeline, pipeline
from psgd.torch.pieces.sequential_stages import SequentialStages
from psgd.training.pieces import module_state
from psgd.training.pieces.model_in_pieces import CutModel
from psgd.training.pieces.module_backend import ModuleBackend
from psgd.training.torch_backend import input_dtype
from psgd.training.torch_module import UncutModule

CutsOf = Callable[[Any, Timed], Cuts]
"""Where the stages of a whole begin, which costs of its layers are known; the same on all ranks. Collective, blocks."""


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


def cut_module(
    model: UncutModule, config: TrainConfig, mesh: ProcessMesh, wish: Decision, cuts_of: CutsOf
) -> CutModule:
    """This rank's part of a module. Collective over the mesh, blocks.

    Args:
        model: the whole; other ranks' parts of it are moved to the meta device.
        config: of the run.
        mesh: all ranks.
        wish: how it is cut.
        cuts_of: where.

    Raises:
        AgreedUsageError: the module cannot be cut like that; on all ranks.
    """
    module, complaint, whole = model.module, None, None
    sample = torch.empty(model.shape, dtype=input_dtype(module), device="meta")
    try:
        if not catalog.SCHEDULES[wish.schedule].flushes:
            raise UsageError(f"--pipe-schedule {wish.schedule}: expected a model of psgd's own layers")
        whole = SequentialStages(module, sample, model.loss, uncut=wish.ranks == 1)
    except UsageError as error:
        complaint = str(error)
    agree(mesh.world, f"--mesh {config.mesh} --model {config.model}", {}, complaint)
    assert whole is not None  # else there was a complaint
    names = [name for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)]

    def timed(samples: int, state_vectors: int) -> Any:
        assert whole is not None
        return layer_costs.measure(whole, samples, state_vectors, config.device)

    cuts = cuts_of(whole, timed)
    tensor = Communicator(mesh.tensor)
    if tensor.size > 1:
        module = cut_by_tensor(module, tensor)
    part = pipeline(
        module,
        mesh.pipe,
        cuts=cuts,
        sample=sample,
        batch=wish.batch,
        microbatches=wish.microbatches,
        loss=model.loss,
        schedule=wish.schedule,
        seed=config.seed,
        device=config.device,
        recompute=config.recompute,
    )
    return CutModule(part, tensor, mesh, wish.plan(cuts), names)
