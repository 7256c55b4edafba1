"""A model in pieces as what a run trains: stages of a pipeline, layers cut by tensor, copies along the data axis."""

import os
from collections import Counter
from dataclasses import replace
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
from psgd.parallel.cuts.measure import measure
from psgd.parallel.cuts.partition import Cuts, check_cuts, partition
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.options import AUTO, layers, microbatches_of
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.tensor.plan import plan
from psgd.parallel.traced import PassSpans
from psgd.runtime.agreement import gather
from psgd.runtime.launcher_env import node_name
from psgd.training import preparation
from psgd.training.pieces.continuous_training import cut_without_flushes
from psgd.training.pieces.model_in_pieces import CutModel
from psgd.training.task import Task
from psgd.training.trainable import OwnModel, Trainable
from psgd.training.trainer import Trainer

INTERLEAVED = 2
"""Stages of a rank where a schedule has several, and the cuts are measured."""


def cut(task: Task, config: TrainConfig, mesh: ProcessMesh | None) -> Task:
    """The same task with this rank's part of its model; without a mesh the task itself. Collective, blocks.

    Raises:
        AgreedUsageError: the model cannot be cut like that; on all ranks.
    """
    if mesh is None:
        return task
    model, batch = task.model, min(config.batch_size, task.samples)
    if not isinstance(model, OwnModel):
        raise AgreedUsageError(
            f"--mesh {config.mesh}: expected a model of psgd's own layers, got {config.model}; PyTorch's are cut in a "
            "loop of your own: see psgd.torch.pipeline"
        )
    whole, stages = model.model, mesh.sizes["pipe"]
    schedule = config.pipe_schedule or "1f1b"
    microbatches = min(batch, config.microbatches or microbatches_of(schedule, stages))
    cuts = _cuts(whole, config, mesh, schedule, batch, microbatches)
    tensor = Communicator(mesh.tensor)
    if tensor.size > 1:
        parts = plan(whole.layers, whole.input_shape, tensor, cuts, loss=True)
        whole = Model(parts, whole.input_shape, whole.dtype)
    size = -(-batch // microbatches)

    def recompute(stage: Stage) -> Stage:
        return activations.recomputed(stage, config.recompute, size)

    if not catalog.SCHEDULES[schedule].flushes:
        return replace(
            task, model=cut_without_flushes(task, config, mesh, tensor, whole, cuts, batch, microbatches, recompute)
        )
    pipeline = Pipeline(mesh.pipe, whole, cuts, schedule, batch=batch, microbatches=microbatches, recompute=recompute)
    plan_of = catalog.make(schedule, stages, microbatches, (len(cuts) + 1) // stages)
    return replace(task, model=CutModel(pipeline, tensor, mesh, plan_of, model.model))


def _cuts(model: Model, config: TrainConfig, mesh: ProcessMesh, schedule: str, batch: int, microbatches: int) -> Cuts:
    """Where stages begin: as given, or measured by rank 0; the same on all ranks."""
    stages, count = mesh.sizes["pipe"], len(model.layers)
    nodes = Counter(str(each["node"]) for each in gather(mesh.world, {"node": node_name()}))
    found: dict[str, Any] = {}
    if mesh.world.Get_rank() == 0:
        try:
            given = layers(config.cut or AUTO)
            if given is not None:
                chunks = (len(given) + 1) // stages if catalog.SCHEDULES[schedule].chunks else 1
                found["cuts"] = check_cuts(given, count, stages * max(1, chunks))
            else:
                chunks = INTERLEAVED if catalog.SCHEDULES[schedule].chunks else 1
                found["cuts"] = _measured(model, config, stages, chunks, schedule, batch, microbatches, nodes)
        except UsageError as error:
            found["error"] = str(error)
    found = gather(mesh.world, found)[0]
    if "error" in found:
        raise AgreedUsageError(found["error"])
    return tuple(found["cuts"])


def _measured(
    model: Model,
    config: TrainConfig,
    ranks: int,
    chunks: int,
    schedule: str,
    batch: int,
    microbatches: int,
    nodes: Counter[str],
) -> Cuts:
    """The best cut of measured layers into stages that fit into this machine's memory, shared by its ranks."""
    if ranks * chunks == 1:
        return ()
    x = np.zeros((-(-batch // microbatches), *model.input_shape), model.dtype)
    state = preparation.rule(config, serves=False).init(np.zeros(1, model.dtype))
    costs = measure(model, x, len(state))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(nodes.values()) // chunks
    alive = microbatches if catalog.SCHEDULES[schedule].flushes else microbatches * ranks
    limits = catalog.make(schedule, ranks, alive, chunks).in_flight_limit
    return partition(costs, ranks * chunks, memory, limits * chunks)


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
