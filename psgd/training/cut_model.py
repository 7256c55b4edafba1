"""A model in pieces as what a run trains: stages of a pipeline, layers cut by tensor, copies along the data axis."""

import importlib
import os
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.estimate import activations
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.metrics.trace.span import Traceable
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.parallel.cuts.decision import Decision, Timed
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.tensor.plan import plan
from psgd.parallel.traced import PassSpans
from psgd.runtime.agreement import gather
from psgd.runtime.launcher_env import node_name
from psgd.training import preparation
from psgd.training.pieces.continuous_training import cut_without_flushes
from psgd.training.pieces.model_in_pieces import CutModel
from psgd.training.sharded.sharded_pieces import cut_sharded
from psgd.training.task import Task
from psgd.training.trainable import OwnModel, Trainable
from psgd.training.trainer import Trainer

_PEERS = "peers"
"""What `Communicator.last` says of a call that the ranks' GPUs have carried out among themselves."""


def cut(task: Task, config: TrainConfig, mesh: ProcessMesh | None) -> Task:
    """The same task with this rank's part of its model; without a mesh the task itself. Collective, blocks.

    Raises:
        AgreedUsageError: the model cannot be cut like that; on all ranks.
    """
    if mesh is None:
        return task
    model, batch = task.model, min(config.batch_size, task.samples)
    wish = Decision(mesh.sizes["pipe"], batch, config.microbatches, config.pipe_schedule, config.cut)
    apart = not catalog.SCHEDULES[wish.schedule].flushes
    if config.device == "cuda" and apart and (config.shard or mesh.sizes["tensor"] > 1):
        got = f"--shard {config.shard}" if config.shard else f"--mesh {config.mesh}"
        raise AgreedUsageError(
            f"--device cuda: with --pipe-schedule {wish.schedule} expected each stage whole on one GPU, without tensor "
            f"and --shard, got {got}: omit one of them"
        )
    if not isinstance(model, OwnModel):
        if config.shard in (2, 3):
            raise AgreedUsageError(
                f"--shard {config.shard}: expected --shard 1 with --mesh {config.mesh} and a PyTorch module"
            )
        from psgd.training.pieces.module_in_pieces import cut_module
        from psgd.training.torch_module import UncutModule  # which load PyTorch, as the user's file has

        assert isinstance(model, UncutModule)
        return replace(
            task, model=cut_module(model, config, mesh, wish, partial(_cuts, config, mesh, wish), task.samples)
        )
    whole = model.model
    cuts = _cuts(config, mesh, wish, whole)
    tensor = Communicator(mesh.tensor)
    if tensor.size > 1:
        cut_layers = plan(whole.layers, whole.input_shape, tensor, cuts, loss=True)
        whole = Model(cut_layers, whole.input_shape, whole.dtype)

    def recompute(stage: Stage) -> Stage:
        return activations.recomputed(stage, config.recompute, wish.size)

    def graphs() -> bool:
        return tensor.size == 1 or tensor.last[1] == _PEERS  # a graph cannot wait for other ranks' hosts

    parts = wish.microbatches
    if apart and config.shard in (None, 1):
        return replace(
            task, model=cut_without_flushes(task, config, mesh, tensor, whole, cuts, batch, parts, recompute)
        )
    if config.shard in (2, 3):
        tokens, layout = model.model.tokens, model.model.layout
        how = cuts, wish, recompute, graphs
        return replace(task, model=cut_sharded(config, mesh, tensor, whole, layout, tokens, *how))
    pipeline = Pipeline(
        mesh.pipe,
        whole,
        cuts,
        wish.schedule,
        batch=batch,
        microbatches=parts,
        recompute=recompute,
        device=config.device,
        graphs=graphs,
    )
    return replace(
        task, model=CutModel(pipeline, tensor, mesh, wish.plan(cuts), model.model.layout, model.model.tokens)
    )


def _cuts(config: TrainConfig, mesh: ProcessMesh, wish: Decision, model: Model, timed: Timed | None = None) -> Cuts:
    """Where stages begin: as given, or measured by rank 0 for its memory; the same on all ranks."""
    nodes = Counter(str(each["node"]) for each in gather(mesh.world, {"node": node_name()}))
    found: dict[str, Any] = {}
    if mesh.world.Get_rank() == 0:
        state = preparation.rule(config, serves=False).init(np.zeros(1, model.dtype))
        here = max(nodes.values())
        xp: Any = np
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // here
        if config.device == "cuda":
            xp = importlib.import_module("cupy")
            runtime = xp.cuda.runtime
            memory = runtime.memGetInfo()[0] // -(-here // runtime.getDeviceCount())
        try:
            found["cuts"] = wish.cuts(model, len(state), memory, timed, xp)
        except UsageError as error:
            found["error"] = str(error)
    found = gather(mesh.world, found)[0]
    if "error" in found:
        raise AgreedUsageError(found["error"])
    return tuple(found["cuts"])


def more(model: Trainable) -> dict[str, Any]:
    """What `psgd train --json` says of a model in pieces beside what it says of any. Collective over all ranks."""
    return {"mesh": model.mesh.sizes, "bubble": model.bubble()} if isinstance(model, CutModel) else {}


def trainer(model: Trainable) -> type[Trainer]:
    """The loop that trains it."""
    return model.trainer if isinstance(model, CutModel) else Trainer


def passes(model: Trainable) -> list[Traceable]:
    """What a trace times of a model in pieces: the passes of its pipeline."""
    return [PassSpans(model.pipeline.executor)] if isinstance(model, CutModel) else []


def part(model: Trainable) -> ModelPart | None:
    """What `psgd.connect` needs to know of a model in pieces; None of any other."""
    return model.part if isinstance(model, CutModel) else None


def close(model: Trainable) -> None:
    """Frees what a model in pieces communicates with. Collective over all ranks."""
    if isinstance(model, CutModel):
        model.close()
