"""A PyTorch module with gradients and parameters in parts, as what a run trains: `--model FILE.py:make --shard 2|3`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.backend.interface import Backend
from psgd.checkpoint import export
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.evaluation import EVALUATION_BATCH
from psgd.nn.stage import OnReady
from psgd.runtime.agreement import gather
from psgd.torch.sharded.module import ShardedModule
from psgd.torch.sharded.shard_module import shard
from psgd.training.roles import Roles
from psgd.training.torch_backend import TorchBackend, evaluating, untouched
from psgd.training.torch_module import UncutModule, seed_step


class ShardedModuleBackend(TorchBackend):
    """As `TorchBackend`; in stage 3 all workers evaluate together, in as many passes each.

    Args:
        model: shared out; in the block of `psgd.connect`.
        loss, dataset, statistics, batch_size: as of `TorchBackend`.
    """

    _model: Any

    def prepare(self, params: Array) -> None:
        """Also runs a forward pass, so that what PyTorch loads at the first is loaded. Collective in stage 3."""
        rows = np.zeros(1, np.int64)
        rows.flags.writeable = False  # as a sampler's; others would be compiled for by themselves
        x, _ = self._batches.fetch(rows)
        with untouched(self._module), torch.no_grad():
            self._module(self._tensor(x))
        self._test.ordered(0, min(1, self._test.samples))

    def bind(self, params: Array, grads: Array) -> None:
        """Nothing: parameters and gradients are where the sharded module has them."""

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> float:
        x, y = self._batches.fetch(indices)
        if touch is not None:
            touch(x)
        loss = self._loss(self._module(self._tensor(x)), torch.from_numpy(y))
        loss.backward()
        return float(loss.item())

    def evaluate(self, part: int, parts: int) -> tuple[int, float]:
        result = super().evaluate(part, parts)
        samples, step = self._test.samples, EVALUATION_BATCH
        mine = len(range(part * step, samples, parts * step))
        for _ in range(mine, len(range(0, samples, parts * step)) if self._model.sharding.stage == 3 else 0):
            with evaluating(self._module), torch.no_grad():  # others need this worker's part
                self._module(self._tensor(self._test.ordered(0, 1)[0]))
        return result


class SharedOutModule:
    """One worker's part of a module. Implements `Trainable`. Creating is collective, blocks.

    Args:
        model: the whole, on the CPU, a GPU or the meta device: but for the last it is on this worker's device first.
        config: the run's.
        roles: whose `data` are the workers.

    Attributes:
        layout: of the whole module's parameters.
    """

    def __init__(self, model: UncutModule, config: TrainConfig, roles: Roles) -> None:
        assert config.shard is not None
        self._loss, self._workers = model.loss, roles.data
        there = _place(config)
        if not any(p.is_meta for p in model.module.parameters()):
            model.module.to(there)
        steps = config.own.get("accumulate") or 1
        made = shard(model.module, roles.data, stage=config.shard, seed=config.seed, device=there, accumulate=steps)
        assert isinstance(made, ShardedModule)  # else there is one worker
        if there.type == "cuda":
            torch.cuda.empty_cache()  # of the module as a whole: CuPy's arrays are not made of what PyTorch keeps
        self._model, self.layout = made, made.layout

    @property
    def evaluates_together(self) -> bool:
        """Whether an evaluation needs all workers."""
        return self._model.sharding.stage == 3

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        return self._model.params

    def connected(self, vector: Array) -> Any:
        return self._model

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        model: Any = self._model
        batch_size = min(config.batch_size, dataset.train.samples)
        if config.device != "cpu":
            from psgd.training.sharded.sharded_cuda_module import ShardedCudaModuleBackend

            keep = None if config.data_device == "auto" else config.data_device == "cuda"
            return ShardedCudaModuleBackend(model, self._loss, dataset, statistics, batch_size, keep)
        return ShardedModuleBackend(model, self._loss, dataset, statistics, batch_size)

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """As of `TorchModel`."""
        seed_step(self._model.device, seed, worker, epoch, step)

    def agreed(self, stop: bool) -> bool:
        """Whether any worker says so, where each has a part. Collective at stage 3, blocks."""
        if not self.evaluates_together:
            return stop
        return any(each["stop"] for each in gather(self._workers, {"stop": bool(stop)}))

    def save(self, path: Path, vector: Array) -> None:
        """The module's whole state_dict, buffers and frozen parameters too. Collective at stage 3."""
        state = self._model.state_dict(0)
        if self._workers.Get_rank() == 0:
            export.write_named(path, state, "--save")

    def close(self) -> None:
        """Frees what it communicates with. Collective."""
        self._model.close()


def _place(config: TrainConfig) -> torch.device:
    """Where this worker computes."""
    return torch.device("cpu") if config.device == "cpu" else torch.device("cuda", torch.cuda.current_device())
