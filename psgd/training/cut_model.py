"""A model in pieces as what a run trains: stages of a pipeline, layers cut by tensor, copies along the data axis."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from psgd.backend.interface import Backend
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.estimate import activations
from psgd.kernels.array import Array
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.metrics.trace.span import Traceable
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.parallel.axes import AXES
from psgd.parallel.cuts.decision import Decision
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import grid
from psgd.parallel.schedules.checker import check
from psgd.parallel.schedules.schedule import Schedule
from psgd.parallel.tensor.plan import plan
from psgd.parallel.traced import PassSpans
from psgd.runtime.agreement import gather
from psgd.runtime.launcher_env import node_name
from psgd.training import preparation
from psgd.training.gathered import write
from psgd.training.pipeline_backend import PipelineBackend
from psgd.training.task import Task
from psgd.training.trainable import OwnModel, Trainable


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
    whole = model.model
    wish = Decision(mesh.sizes["pipe"], batch, config.microbatches, config.pipe_schedule, config.cut)
    cuts = _cuts(whole, config, mesh, wish)
    tensor = Communicator(mesh.tensor)
    if tensor.size > 1:
        cut_layers = plan(whole.layers, whole.input_shape, tensor, cuts, loss=True)
        whole = Model(cut_layers, whole.input_shape, whole.dtype)

    def recompute(stage: Stage) -> Stage:
        return activations.recomputed(stage, config.recompute, wish.size)

    parts = wish.microbatches
    pipeline = Pipeline(mesh.pipe, whole, cuts, wish.schedule, batch=batch, microbatches=parts, recompute=recompute)
    return replace(task, model=CutModel(pipeline, tensor, mesh, wish.plan(cuts), model.model))


def _cuts(model: Model, config: TrainConfig, mesh: ProcessMesh, wish: Decision) -> Cuts:
    """Where stages begin: as given, or measured by rank 0 for its memory; the same on all ranks."""
    nodes = Counter(str(each["node"]) for each in gather(mesh.world, {"node": node_name()}))
    found: dict[str, Any] = {}
    if mesh.world.Get_rank() == 0:
        state = preparation.rule(config, serves=False).init(np.zeros(1, model.dtype))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // max(nodes.values())
        try:
            found["cuts"] = wish.cuts(model, len(state), memory)
        except UsageError as error:
            found["error"] = str(error)
    found = gather(mesh.world, found)[0]
    if "error" in found:
        raise AgreedUsageError(found["error"])
    return tuple(found["cuts"])


def more(model: Trainable) -> dict[str, Any]:
    """What `psgd train --json` says of a model in pieces beside what it says of any. Collective over all ranks."""
    return {"mesh": model.mesh.sizes, "bubble": model.bubble()} if isinstance(model, CutModel) else {}


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


class CutModel:
    """One rank's part of a model in pieces. Implements `Trainable`.

    Args:
        pipeline: of this rank.
        tensor: what its layers exchange partial results by; freed with it.
        mesh: all ranks; freed by its owner.
        schedule: of a whole batch.
        whole: the whole model, as a description.

    Attributes:
        layout: of this rank's part.
        mesh: as given.
        pipeline: as given.
        part: what `psgd.connect` needs to know of it.
    """

    def __init__(
        self, pipeline: Pipeline, tensor: Communicator, mesh: ProcessMesh, schedule: Schedule, whole: Model
    ) -> None:
        self.pipeline, self.layout, self.mesh = pipeline, pipeline.layout, mesh
        self._tensor = tensor
        self._schedule, self._tokens = schedule, whole.tokens
        self._draws: PipelineBackend | None = None
        axes = {name: place for name, place in sorted(mesh.coordinates.items()) if AXES[name].of_a_replica}
        self.part = ModelPart(mesh.world, mesh.replica, coordinates=axes, layout=self.layout, whole=whole.layout)

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        return np.empty(self.layout.size, np.float32) if serves else self.pipeline.init(config.seed)

    def connected(self, vector: Array) -> Any:
        return vector

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        self._draws = made = PipelineBackend(
            self.pipeline, self.mesh.pipe, dataset, statistics, config.batch_size, self._tokens
        )
        return made

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """What its layers draw is by sample, so neither the worker nor the cut matter."""
        if self._draws is not None:
            self._draws.begin(seed, epoch, step)

    def agreed(self, stop: bool) -> bool:
        """Whether any rank of this copy says so. Collective over the copy, blocks."""
        return bool(self.part.largest(int(stop)))

    def save(self, path: Path, vector: Array) -> None:
        """Writes the whole model's final weights, one parameter at a time. Collective over the first copy."""
        write(path, vector, self.layout, self.part.whole, self.mesh.replica, "--save")

    def bubble(self) -> dict[str, Any] | None:
        """How much of the ranks' time a pipeline has waited, and would if passes took equally long. Collective.

        Returns:
            None without a pipeline; the keys of `bubble` in `psgd train --json`.
        """
        counters, schedule = self.pipeline.counters, self._schedule
        seconds = [counters.bubble_s, counters.bubble_s + counters.compute_s]
        everyone = [each["seconds"] for each in gather(self.mesh.world, {"seconds": seconds})]
        waited, whole = (sum(each[at] for each in everyone) for at in (0, 1))
        if schedule.ranks == 1:
            return None
        return {
            "share": waited / whole if whole else 0.0,
            "expected": grid.bubble(check(schedule), schedule.ranks),
            "schedule": schedule.name,
            "ranks": schedule.ranks,
            "microbatches": schedule.microbatches,
        }

    def close(self) -> None:
        """Frees what it communicates with. Collective."""
        self.pipeline.close()
        self._tensor.free()
