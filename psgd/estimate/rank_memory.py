"""What each rank of a run needs, from its options: parameters, gradients, state, activations, buffers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psgd.config import TrainConfig
from psgd.estimate import activations, sharded_vectors, strategy_vectors
from psgd.nn.gates import apart
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.optim import rules
from psgd.strategies import going_on

SHARED_GRADIENTS = "gradients of shared parameters"
ACTIVATIONS, EVALUATION, BATCH, SLOTS = "activations", "evaluation", "a batch of samples", "slots of collectives"
WORKSPACE = "workspace of matrix products"
TWO_LAYERS, TWO_GRADIENTS = "two layers' parameters", "two layers' gradients"
ON_HOST = "worker, on its host"
"""The role of the part of a worker that is not on its GPU."""
SLOT_BYTES = 7_602_304
"""Of a rank and communicator: slots in shared memory for short collectives, `psgd.collectives.shm.layout`."""
WORKSPACE_BYTES = 32 << 20
"""Of a GPU's products, `psgd.kernels.device.blas`."""
BASE_BYTES = 180 << 20
"""Python, NumPy, MPI and compiled code, before there is a model: measured on x86-64 with Open MPI."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank, by what they are for.

    Attributes:
        role: "worker", `ON_HOST` beside it, or "server".
        ranks: how many ranks need as much.
        rows: bytes by name, in the order of a table.
        device: where they are, "cpu" or "cuda".
    """

    role: str
    ranks: int
    rows: Mapping[str, int]
    device: str = "cpu"

    @property
    def total(self) -> int:
        """All rows."""
        return sum(self.rows.values())


def of_run(
    config: TrainConfig, model: Model, servers: int, workers: int, evaluation_batch: int = 500
) -> list[Estimate]:
    """Returns what each kind of rank needs, workers first.

    Args:
        config: the run's options.
        model: not bound to anything.
        servers: how many ranks are servers.
        workers: how many are workers.
        evaluation_batch: samples of one pass of an evaluation.
    """
    sample = int(np.prod(model.input_shape)) * model.dtype.itemsize + 8
    evaluated = activations.count(model, evaluation_batch, device=config.device, trains=False)
    passes = {
        ACTIVATIONS: activations.count(model, config.batch_size, device=config.device),
        EVALUATION: evaluated + evaluation_batch * sample,
        BATCH: config.batch_size * sample,
        SHARED_GRADIENTS: shared_gradients(model),
        WORKSPACE: workspace(config.device),
    }
    return of_vectors(config, model.layout.size * model.dtype.itemsize, servers, workers, passes, model)


def workspace(device: str) -> int:
    """Bytes that products of psgd's layers need beside their results."""
    return WORKSPACE_BYTES if device == "cuda" else 0


def shared_gradients(stage: Stage) -> int:
    """Bytes of gradients that further names of a parameter have by themselves, before they are added."""
    sizes = {p.name: p.size for p in stage.layout.parameters}
    return sum(sizes[same] for _, same in stage.layout.tied) * int(stage.dtype.itemsize)


def of_vectors(
    config: TrainConfig,
    size: int,
    servers: int,
    workers: int,
    passes: Mapping[str, int],
    *stages: Stage,
    communicators: int = 0,
    whole: bool = False,
    shared: Mapping[str, int] | None = None,
) -> list[Estimate]:
    """Returns what each kind of rank needs that trains a vector together, workers first.

    Args:
        config: the run's options.
        size: bytes of the vector.
        servers: how many of these ranks are servers.
        workers: how many are workers.
        passes: bytes that a worker needs beside; rows of none are left out.
        *stages: the layers that have the vector, of psgd's; none of other libraries.
        communicators: that a worker has beside its strategy's.
        shared: a worker's vectors where all workers share them, of a model whose units the caller knows; else None.
        whole: a stage's gradient is kept whole until its microbatches are added, where it is sharded.
    """
    passes = {name: number for name, number in passes.items() if number}
    state = state_vectors(config)
    options: dict[str, Any] = {**config.own, "compress": config.compress, "clip_norm": config.clip_norm}
    options["replicas"] = config.replicas
    shard = (config.shard or 0) if workers > 1 else 0
    if workers > 1 and strategy_vectors.uses_collectives(config.strategy, options):
        communicators += 1 + (shard > 1 and bool(stages or shared))  # the model's own exchange
    collective = {SLOTS: communicators * SLOT_BYTES} if communicators else {}
    survives = going_on.survives(config.flat(), servers, workers)
    firsts = strategy_vectors.of_worker(config.strategy, options, state, workers, 0, servers, survives)
    others = strategy_vectors.of_worker(config.strategy, options, state, workers, 1, servers, survives)
    groups = [(1, firsts), (workers - 1, others)] if firsts != others and workers > 1 else [(workers, firsts)]
    slots = {} if config.offload is None else on_gpu(config.offload, size, stages)
    found = []
    for ranks, rows in groups:
        held = {name: int(number * size) for name, number in rows.items()}
        if shard:
            held = dict(shared) if shared else _sharded(config, shard, size, workers, stages, whole)
        if slots:
            found.append(Estimate("worker", ranks, {**slots, **passes}, config.device))
            found.append(Estimate(ON_HOST, ranks, {**held, **collective}))
        else:
            found.append(Estimate("worker", ranks, {**held, **passes, **collective}, config.device))
    if servers:
        rows = strategy_vectors.of_server(options, state, servers, workers, survives)
        held = {name: int(number * size) for name, number in rows.items()}
        found.append(Estimate("server", servers, held, config.server_device))
    return found


def on_gpu(offload: str, size: int, stages: Sequence[Stage]) -> dict[str, int]:
    """Bytes of the vectors on a GPU whose optimizer, or whose parameters too, are on the host.

    Args:
        offload: "optimizer" or "parameters".
        size: bytes of the vector.
        stages: psgd's layers that have it; none of other libraries.
    """
    if offload == "optimizer" or not stages:
        return {strategy_vectors.PARAMETERS: size, strategy_vectors.GRADIENTS: size}
    parameters, gradients = _layers(stages[0])
    return {TWO_LAYERS: parameters, TWO_GRADIENTS: gradients}


def _layers(stage: Stage) -> tuple[int, int]:
    """Bytes of two slots for the largest layer's parameters, those that it shares included, and for its gradient."""
    layers = apart.parts(stage)
    slots = min(2, len(layers)) * int(stage.dtype.itemsize)
    return slots * max(each.size for each in layers), slots * max(len(each.own) for each in layers)


def _sharded(
    config: TrainConfig, shard: int, size: int, workers: int, stages: Sequence[Stage], whole: bool
) -> dict[str, int]:
    """Bytes of a worker's vectors where all workers share them."""
    state, steps = state_vectors(config), config.own.get("accumulate") or 1
    if not stages:
        return sharded_vectors.of_vector(size // 4, 4, workers, state, steps)
    if config.parts > 1 and shard > 1:
        return sharded_vectors.of_pieces(stages, shard, workers, state, steps, whole)
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(sharded_vectors.of_stage(stage, shard, workers, state, steps))
    return dict(total)


def state_vectors(config: TrainConfig) -> int:
    """How many vectors the update rule keeps: asked of the rule itself."""
    rule = rules.create(config.optimizer, config.momentum, config.weight_decay)
    return len(rule.init(np.zeros(1, np.float32)))
