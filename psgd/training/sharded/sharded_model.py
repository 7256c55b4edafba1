"""psgd's own models with gradients and parameters in parts: `--shard 2` and `--shard 3`, as what a run trains."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from psgd.backend.interface import Backend
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.kernels.errors import AgreedUsageError
from psgd.nn.model import Model
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices
from psgd.runtime.agreement import gather
from psgd.training import gathered, preparation
from psgd.training.roles import Roles
from psgd.training.sharded import sharded_backend
from psgd.training.sharded.sharded_pieces import ShardedPiece
from psgd.training.task import Task
from psgd.training.trainable import OwnModel, Trainable


def shard(task: Task, config: TrainConfig, roles: Roles) -> Task:
    """The same task with this worker's part of its model; at stage 1 or without sharding the task itself.

    Collective, blocks.

    Raises:
        AgreedUsageError: there is one worker, or a model that cannot be shared out; on all ranks.
    """
    if config.shard and roles.workers == 1:
        raise AgreedUsageError(
            f"--shard {config.shard}: a single worker has nobody to share with; start more, or omit it"
        )
    if not config.shard or config.shard == 1 or isinstance(task.model, ShardedPiece):
        return task
    if not isinstance(task.model, OwnModel):
        from psgd.training.sharded.sharded_module import SharedOutModule  # which loads PyTorch, as the user's file has
        from psgd.training.torch_module import UncutModule

        assert isinstance(task.model, UncutModule)
        return replace(task, model=SharedOutModule(task.model, config, roles))
    return replace(task, model=ShardedModel(task.model.model, config, roles))


def choice(config: TrainConfig, model: Trainable) -> Any:
    """What `psgd.connect` takes as `shard`."""
    return model.exchange if isinstance(model, (ShardedModel, ShardedPiece)) else config.shard or 0


def close(model: Trainable) -> None:
    """Frees what a sharded model communicates with. Collective."""
    closes = getattr(model, "close", None)
    if closes is not None and hasattr(model, "evaluates_together") and not isinstance(model, ShardedPiece):
        closes()  # a piece is closed by `cut_model`


class ShardedModel:
    """One worker's part of a model. Implements `Trainable`. Creating is collective, blocks.

    At stage 3 first values are drawn one parameter at a time, and each worker keeps its own: no worker has the model.

    Args:
        model: the whole, on no vector.
        config: the run's.
        roles: whose `data` are the workers.

    Attributes:
        layout: of the whole model.
        exchange: of its units.
    """

    def __init__(self, model: Model, config: TrainConfig, roles: Roles) -> None:
        self.layout = model.layout
        self._workers = roles.data
        self._comm = Communicator(roles.data)
        assert config.shard is not None
        slices = Slices(units.of_stage(model), self._comm.size, self._comm.rank)
        if config.shard == 2:
            params = preparation.first_params(config, model)
        else:
            params = by_unit.first_own(model, slices, config.seed)
            if config.device != "cpu":
                import cupy

                params = cupy.asarray(params)
        shared = by_unit.shared_units(model, slices.units)
        steps = config.own.get("accumulate") or 1
        self.exchange = Exchange(self._comm, slices, params, config.shard, steps, shared)
        self._model = by_unit.by_unit(model, self.exchange, graphs=True)
        self._draws: sharded_backend.ShardedHostBackend | None = None

    @property
    def evaluates_together(self) -> bool:
        """Whether an evaluation needs all workers."""
        return self.exchange.stage == 3

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        return self.exchange.params

    def connected(self, vector: Array) -> Any:
        return vector

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        self._draws = made = sharded_backend.make(config, self._model, self.exchange, dataset, statistics)
        return made

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """What its layers draw is by sample, so the worker does not matter."""
        if self._draws is not None:
            self._draws.begin(seed, epoch, step)

    def agreed(self, stop: bool) -> bool:
        """Whether any worker says so, where each has a part. Collective at stage 3, blocks."""
        if not self.evaluates_together:
            return stop
        return any(each["stop"] for each in gather(self._workers, {"stop": bool(stop)}))

    def save(self, path: Path, vector: Array) -> None:
        """Writes the whole model's final weights, one parameter at a time. Collective at stage 3."""
        pieces = gathered.in_form(path, self._whole(vector), self.layout)
        gathered.write_pieces(path, pieces, self._workers, "--save")

    def _whole(self, vector: Any) -> Iterator[tuple[str, Any]]:
        """On worker 0 each parameter by every name; at stage 3 other workers send their parts of it."""
        slices, places = self.exchange.slices, {p.name: p for p in self.layout.parameters}
        for name, place in gathered.places(self.layout):
            p = places[place]
            part = range(p.offset, p.stop)
            if not self.evaluates_together:
                yield name, vector[p.offset : p.stop].reshape(p.shape)
                continue
            counts = [len(slices.of(rank).within(part)) for rank in range(slices.ranks)]
            whole = np.empty(p.size, vector.dtype)
            mine = slices.within(part)
            self._workers.Gatherv(np.ascontiguousarray(vector[mine.start : mine.stop]), [whole, counts], 0)
            if self._workers.Get_rank() == 0:
                yield name, whole.reshape(p.shape)

    def close(self) -> None:
        """Frees what it communicates with. Collective."""
        self.exchange.free()
        self._comm.free()
