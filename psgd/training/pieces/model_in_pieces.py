"""One rank's part of a model in pieces, as what a run trains."""

from pathlib import Path
from typing import Any

import numpy as np

from psgd.backend.interface import Backend, DrawsByStep
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.layout import Layout
from psgd.parallel.axes import AXES
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import grid
from psgd.parallel.schedules.checker import check
from psgd.parallel.schedules.schedule import Schedule
from psgd.runtime.agreement import gather
from psgd.training.gathered import write
from psgd.training.pieces.pipeline_backend import PipelineBackend
from psgd.training.trainer import Trainer


class CutModel:
    """One rank's part of a model in pieces. Implements `Trainable`.

    Args:
        pipeline: of this rank.
        tensor: what its layers exchange partial results by; freed with it.
        mesh: all ranks; freed by its owner.
        schedule: of a whole batch.
        whole: of the whole model; no rank needs such a vector.
        tokens: of a sample that has a loss for each of them; else 1.

    Attributes:
        layout: of this rank's part.
        mesh: as given.
        pipeline: as given.
        part: what `psgd.connect` needs to know of it.
        trainer: the loop that trains it.
    """

    trainer: type[Trainer] = Trainer

    def __init__(
        self,
        pipeline: Pipeline,
        tensor: Communicator,
        mesh: ProcessMesh,
        schedule: Schedule,
        whole: Layout,
        tokens: int = 1,
    ) -> None:
        self.pipeline, self.layout, self.mesh = pipeline, pipeline.layout, mesh
        self._tensor = tensor
        self._schedule, self._tokens = schedule, tokens
        self._draws: DrawsByStep | None = None
        axes = {name: place for name, place in sorted(mesh.coordinates.items()) if AXES[name].of_a_replica}
        self.part = ModelPart(mesh.world, mesh.replica, coordinates=axes, layout=self.layout, whole=whole)

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        if serves:
            return np.empty(self.layout.size, np.float32)
        params = self.pipeline.init(config.seed)
        if config.device == "cpu":
            return params
        import cupy

        return cupy.asarray(params)

    def connected(self, vector: Array) -> Any:
        return vector

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        common = self.pipeline, self.mesh.pipe, dataset, statistics, config.batch_size, self._tokens
        if config.device == "cpu":
            self._draws = made = PipelineBackend(*common)
            return made
        from psgd.training.pieces.cuda_pipeline_backend import CudaPipelineBackend

        keep = None if config.data_device == "auto" else config.data_device == "cuda"
        self._draws = there = CudaPipelineBackend(*common, keep)
        return there

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
            None without a pipeline, and on GPUs, whose passes nobody times; the keys of `bubble` in
            `psgd train --json`.
        """
        if self.pipeline.on_gpu:
            return None
        counters, schedule = self.pipeline.counters, self._schedule
        seconds = [counters.bubble_s, counters.bubble_s + counters.compute_s]
        everyone = [each["seconds"] for each in gather(self.mesh.world, {"seconds": seconds})]
        waited, whole = (sum(each[at] for each in everyone) for at in (0, 1))
        if schedule.ranks == 1:
            return None
        return {
            "share": waited / whole if whole else 0.0,
            "expected": self.expected_bubble(schedule),
            "schedule": schedule.name,
            "ranks": schedule.ranks,
            "microbatches": schedule.microbatches,
        }

    def expected_bubble(self, schedule: Schedule) -> float:
        """The bubble if all passes took equally long, and nothing else took time."""
        return grid.bubble(check(schedule), schedule.ranks)

    def close(self) -> None:
        """Frees what it communicates with. Collective."""
        self.pipeline.close()
        self._tensor.free()
