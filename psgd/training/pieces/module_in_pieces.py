"""Cutting a PyTorch module, of which each rank trains a part."""

from collections.abc import Callable
from typing import Any

import torch

from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.cuts.decision import Decision, Timed
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.mesh import ProcessMesh
from psgd.runtime.agreement import agree
from psgd.torch.pieces import layer_costs
from psgd.torch.pieces.by_tensor import cut_by_tensor
from psgd.torch.pieces.module_pipeline import pipeline
from psgd.torch.pieces.sequential_stages import SequentialStages
from psgd.training.pieces.continuous_module import ContinuousModule
from psgd.training.pieces.continuous_training import plan
from psgd.training.pieces.module_part import CutModule
from psgd.training.torch_backend import input_dtype
from psgd.training.torch_module import UncutModule

CutsOf = Callable[[Any, Timed], Cuts]
"""Where the stages of a whole begin, which costs of its layers are known; the same on all ranks. Collective, blocks."""


def cut_module(
    model: UncutModule, config: TrainConfig, mesh: ProcessMesh, wish: Decision, cuts_of: CutsOf, samples: int
) -> CutModule:
    """This rank's part of a module. Collective over the mesh, blocks.

    Args:
        model: the whole; other ranks' parts of it are moved to the meta device.
        config: of the run.
        mesh: all ranks.
        wish: how it is cut.
        cuts_of: where.
        samples: of the training set.

    Raises:
        AgreedUsageError: the module cannot be cut like that; on all ranks.
    """
    module, complaint, whole = model.module, None, None
    sample = torch.empty(model.shape, dtype=input_dtype(module), device="meta")
    try:
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
    if not isinstance(part.pipeline, PipeDream):
        return CutModule(part, tensor, mesh, wish.plan(cuts), names)
    schedule, epoch = plan(part.pipeline, wish.schedule, config, mesh, wish.batch, samples)
    found = ContinuousModule(part, tensor, mesh, schedule, names)
    found.epoch = epoch
    return found
