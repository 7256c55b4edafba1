"""What each rank of a run needs, from its options: parameters, gradients, state, activations, buffers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psgd.config import TrainConfig
from psgd.estimate import activations, strategy_vectors
from psgd.nn.model import Model
from psgd.optim import rules

ACTIVATIONS, EVALUATION, BATCH, SLOTS = "activations", "evaluation", "a batch of samples", "slots of collectives"
SLOT_BYTES = 8 << 20
"""Of a rank: slots in shared memory for short collectives, and what counts their calls."""
BASE_BYTES = 180 << 20
"""Python, NumPy, MPI and compiled code, before there is a model: measured on x86-64 with Open MPI."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of one rank, by what they are for.

    Attributes:
        role: "worker" or "server".
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
    passes = {
        ACTIVATIONS: activations.count(model, config.batch_size),
        EVALUATION: activations.count(model, evaluation_batch) + evaluation_batch * sample,
        BATCH: config.batch_size * sample,
    }
    return of_vectors(config, model.layout.size * model.dtype.itemsize, servers, workers, passes)


def of_vectors(config: TrainConfig, size: int, servers: int, workers: int, passes: Mapping[str, int]) -> list[Estimate]:
    """Returns what each kind of rank needs that trains a vector together, workers first.

    Args:
        config: the run's options.
        size: bytes of the vector.
        servers: how many of these ranks are servers.
        workers: how many are workers.
        passes: bytes that a worker needs beside.
    """
    state = state_vectors(config)
    options: dict[str, Any] = {**config.own, "compress": config.compress, "clip_norm": config.clip_norm}
    shared = workers > 1 and strategy_vectors.uses_collectives(config.strategy, options)
    collective = {SLOTS: SLOT_BYTES} if shared else {}
    firsts = strategy_vectors.of_worker(config.strategy, options, state, workers)
    others = strategy_vectors.of_worker(config.strategy, options, state, workers, 1)
    groups = [(1, firsts), (workers - 1, others)] if firsts != others and workers > 1 else [(workers, firsts)]
    found = []
    for ranks, rows in groups:
        held = {name: int(number * size) for name, number in rows.items()}
        found.append(Estimate("worker", ranks, {**held, **passes, **collective}, config.device))
    if servers:
        rows = strategy_vectors.of_server(options, state, servers, workers)
        held = {name: int(number * size) for name, number in rows.items()}
        found.append(Estimate("server", servers, held, config.server_device))
    return found


def state_vectors(config: TrainConfig) -> int:
    """How many vectors the update rule keeps: asked of the rule itself."""
    rule = rules.create(config.optimizer, config.momentum, config.weight_decay)
    return len(rule.init(np.zeros(1, np.float32)))
