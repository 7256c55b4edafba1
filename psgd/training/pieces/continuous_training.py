"""`--pipe-schedule pipedream`: a run in which each stage takes its steps without waiting for the others.

The pipeline is full from one point to the next at which something is done with the whole model: an evaluation, a
checkpoint, or the end of an epoch. There it is drained, and all stages are at the same step. A resumed run begins at
such a point, so it has the bits of one that was not interrupted and has the same points.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.backend.interface import Backend
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.data import Dataset
from psgd.data.batches import Batches
from psgd.data.normalization import Statistics
from psgd.data.sampler import Sampler
from psgd.kernels.array import Array
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.schedule import Schedule
from psgd.runtime.rng import bits
from psgd.training.pieces.continuous_passes import ContinuousPasses, NumberedStep
from psgd.training.pieces.model_in_pieces import CutModel
from psgd.training.pieces.pipeline_backend import PipelineBackend
from psgd.training.pieces.pipeline_passes import Batch
from psgd.training.task import Task
from psgd.training.trainable import OwnModel
from psgd.training.trainer import Trainer


class ContinuousBackend(ContinuousPasses, PipelineBackend):
    """As `PipelineBackend`, with many steps at once.

    Args:
        pipeline: of this rank.
        stages, dataset, statistics, batch_size, tokens, dtype: as `PipelineBackend`.
    """

    def __init__(
        self,
        pipeline: PipeDream,
        stages: Any,
        dataset: Dataset,
        statistics: Statistics,
        batch_size: int,
        tokens: int = 1,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(pipeline, stages, dataset, statistics, batch_size, tokens, dtype)
        # A step's samples stay until its backward passes are done, while those of later ones have begun.
        alive, most = stages.Get_size() + 1, min(batch_size, dataset.train.samples)
        self._ring = [Batches(dataset.train, statistics, most, dtype) for _ in range(alive)] if self._reads else []

    def _lasting(self, turn: int, rows: NDArray[np.int64], touch: Callable[[Array], None]) -> Batch:
        x, y = self._ring[turn % len(self._ring)].fetch(rows)
        if self._first:
            touch(x)
        return x, y


class ContinuousTrainer(Trainer):
    """A worker's loop over the points at which its pipeline is drained."""

    def train(self, ps: Connection) -> None:
        """All epochs."""
        config, model, backend = self._config, self._model, self.backend
        may_stop = bool(config.target_accuracy or config.early_stop)
        backend.bind(ps.params, ps.grads)
        sampler = Sampler(self._dataset.train.samples, ps.workers, ps.worker, config.batch_size, config.seed)
        done, end = self._done(ps, sampler), config.epochs * sampler.steps
        evaluated = bool(done) and self._due(done, sampler.steps)
        if evaluated and ps.worker == 0:
            self._report(ps)  # it came after the checkpoint
        while done < end:
            # What an evaluation decides reaches the others in the next step: nobody takes more than that one.
            stop = done + 1 if evaluated and may_stop else self._drained(done, sampler.steps, ps.version)
            self._steps(ps, sampler, range(done, stop))
            if model.agreed(ps.stop):
                return
            done = stop
            evaluated = self._due(done, sampler.steps)
            if evaluated and ps.worker == 0:
                self._report(ps)

    def _drained(self, done: int, steps: int, version: int) -> int:
        """After which step the pipeline is drained next."""
        every = self._config.checkpoint_every if self._config.checkpoint_dir is not None else 0
        end = (done // steps + 1) * steps
        for step in range(done + 1, end):
            if self._due(step, steps) or (every and (version + step - done) % every == 0):
                return step
        return end

    def _steps(self, ps: Connection, sampler: Sampler, numbers: range) -> None:
        """Takes steps of one epoch; a worker that has run out of samples in it keeps pace behind them."""
        seed, last = self._config.seed, numbers[-1]
        assert isinstance(self._model, CutModel) and isinstance(self.backend, ContinuousPasses)
        part = self._model.part
        steps: list[NumberedStep] = []
        for number in numbers:
            epoch, step = divmod(number, sampler.steps)
            steps.append(NumberedStep(bits(seed, "step", epoch, step), number, sampler.batch(epoch, step)))
        full = [step for step in steps if len(step.rows)]

        def take(step: NumberedStep, loss: float) -> None:
            part.apart = step.number < last
            ps.step(len(step.rows), loss)

        try:
            if full:
                self.backend.train(full, take, self._injector)
            for empty in steps[len(full) :]:
                self._injector.begin(empty.number)
                take(empty, 0.0)
        finally:
            part.apart = False


class WithoutFlushes(CutModel):
    """What models whose pipeline is never empty do otherwise: comes before their library's among the bases."""

    trainer = ContinuousTrainer
    epoch = 1
    """Microbatches of an epoch."""

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """Nothing: steps begin at different times on the ranks; see `ContinuousPasses.train`."""

    def expected_bubble(self, schedule: Schedule) -> float:
        """That of the fill and the drain, if the pipeline is drained once an epoch."""
        return (schedule.ranks - 1) / (self.epoch + schedule.ranks - 1)


class ContinuousModel(WithoutFlushes):
    """One rank's part of a model whose pipeline is never empty. Implements `Trainable`.

    Args:
        pipeline: of this rank.
        tensor, mesh: as `CutModel`.
        schedule: of a step.
        whole: the whole model, as a description.
        epoch: microbatches of an epoch.
    """

    def __init__(
        self,
        pipeline: PipeDream,
        tensor: Communicator,
        mesh: ProcessMesh,
        schedule: Schedule,
        whole: Model,
        epoch: int,
    ) -> None:
        super().__init__(pipeline, tensor, mesh, schedule, whole.layout, whole.tokens)
        self._continuous, self.epoch = pipeline, epoch

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        batch, stages = min(config.batch_size, dataset.train.samples), self.mesh.pipe
        common = self._continuous, stages, dataset, statistics, batch, self._tokens
        if config.device == "cpu":
            return ContinuousBackend(*common)
        from psgd.training.pieces.cuda_continuous_backend import CudaContinuousBackend

        keep = None if config.data_device == "auto" else config.data_device == "cuda"
        return CudaContinuousBackend(*common, keep)


def cut_without_flushes(
    task: Task,
    config: TrainConfig,
    mesh: ProcessMesh,
    tensor: Communicator,
    whole: Model,
    cuts: Cuts,
    batch: int,
    microbatches: int,
    recompute: Callable[[Stage], Stage],
) -> ContinuousModel:
    """This rank's part of the task's model. Collective over the copy, blocks.

    Args:
        task: with the whole model.
        config: of the run.
        mesh: all ranks.
        tensor: of this rank's stage.
        whole: the model as this rank's place along `tensor` has it.
        cuts: where stages begin.
        batch: most samples of a step.
        microbatches: of a step.
        recompute: as of `Pipeline`.

    Raises:
        AgreedUsageError: the model cannot be trained so; on all ranks.
    """
    assert isinstance(task.model, OwnModel)
    name = config.pipe_schedule or "pipedream"
    two = name == "pipedream-2bw"
    pipeline = PipeDream(
        mesh.pipe,
        whole,
        cuts,
        batch=batch,
        microbatches=microbatches,
        two_versions=two,
        recompute=recompute,
        device=config.device,
    )
    schedule, epoch = plan(pipeline, name, config, mesh, batch, task.samples)
    return ContinuousModel(pipeline, tensor, mesh, schedule, task.model.model, epoch)


def plan(
    pipeline: PipeDream, name: str, config: TrainConfig, mesh: ProcessMesh, batch: int, samples: int
) -> tuple[Schedule, int]:
    """Returns the schedule of a step, and how many microbatches an epoch has.

    Args:
        pipeline: of this rank.
        name: of the schedule.
        config: of the run.
        mesh: all ranks.
        batch: samples of a step.
        samples: of the training set.
    """
    each = -(-batch // pipeline.microbatch)
    copies = mesh.sizes["data"] - (config.servers or 0)
    return catalog.make(name, pipeline.ranks, each, every=each), each * -(-samples // (batch * max(1, copies)))
