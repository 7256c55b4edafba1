"""The memory of ranks that hold a model in pieces: a stage of a pipeline each, or parts of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from psgd.config import TrainConfig
from psgd.estimate import activations
from psgd.estimate.rank_memory import ACTIVATIONS, BATCH, EVALUATION, Estimate, of_vectors, state_vectors
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.parallel.cuts.measure import measure
from psgd.parallel.cuts.partition import Cuts, check_cuts, partition
from psgd.parallel.options import AUTO, layers, microbatches_of
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.schedule import Schedule
from psgd.parallel.tensor.plan import plan

STASHED = "older weights of passes under way"
_EVALUATED = 2000
"""Samples of the test set that are read at a time."""


@dataclass(frozen=True)
class _Ranks:
    """Of a communicator what a plan asks for: no rank is there."""

    size: int
    rank: int

    def __getattr__(self, name: str) -> Any:
        """A collective, which nobody calls."""
        return None


def of_mesh(config: TrainConfig, model: Model, servers: int, workers: int) -> list[Estimate]:
    """Returns what the ranks at each place of a mesh need; `Estimate.role` names the place.

    Without `--cut` layers are timed here, as rank 0 would.

    Args:
        config: the run's options, with a mesh of several pieces.
        model: the whole, not bound to anything.
        servers: servers of each piece.
        workers: workers, each a copy.

    Raises:
        UsageError: a model that cannot be cut so.
    """
    axes = config.axes
    stages, ranks = axes.get("pipe", 1), axes.get("tensor", 1)
    microbatches = min(
        config.batch_size, config.microbatches or microbatches_of(config.pipe_schedule or "1f1b", stages)
    )
    size = -(-config.batch_size // microbatches)
    cuts, schedule = _cuts(config, model, stages, microbatches, size)
    ends = (0, *cuts, len(model.layers))
    sample = int(np.prod(model.input_shape)) * model.dtype.itemsize + 8
    found: list[Estimate] = []
    for pipe in range(stages):
        for tensor in range(ranks):
            part = _part(model, ranks, tensor, cuts)
            places = range(pipe, len(ends) - 1, stages)
            mine = [activations.recomputed(part.cut(ends[k], ends[k + 1]), config.recompute, size) for k in places]
            passes = {
                ACTIVATIONS: _alive(mine, schedule, pipe, size),
                EVALUATION: _EVALUATED * sample,
                BATCH: config.batch_size * sample,
            }
            vector = sum(stage.layout.size for stage in mine) * model.dtype.itemsize
            if not schedule.flushes:
                older = 1 if schedule.name == "pipedream-2bw" else stages - pipe - 1
                passes[STASHED] = older * vector
            place = f"pipe={pipe}" * (stages > 1) + "," * (stages > 1 and ranks > 1) + f"tensor={tensor}" * (ranks > 1)
            for each in of_vectors(config, vector, servers, workers, passes):
                found.append(replace(each, role=f"{each.role} {place}"))
    return found


def _part(model: Model, ranks: int, rank: int, cuts: Cuts) -> Model:
    """The model as one of the tensor ranks has it."""
    if ranks == 1:
        return model
    there = cast(Any, _Ranks(ranks, rank))
    return Model(plan(model.layers, model.input_shape, there, cuts), model.input_shape, model.dtype)


def _alive(stages: Sequence[Stage], schedule: Schedule, pipe: int, size: int) -> int:
    """Activations of all microbatches that are alive at once, the same number for each stage of a rank."""
    limit = -(-schedule.in_flight_limit[pipe] // len(stages))
    return limit * sum(activations.count(stage, size, pipe + k > 0) for k, stage in enumerate(stages))


def _cuts(config: TrainConfig, model: Model, stages: int, microbatches: int, size: int) -> tuple[Cuts, Schedule]:
    name = config.pipe_schedule or "1f1b"
    given = layers(config.cut or AUTO)
    several = catalog.SCHEDULES[name].chunks
    chunks = 1 if not several else 2 if given is None else max(1, (len(given) + 1) // stages)
    run = microbatches if catalog.SCHEDULES[name].flushes else microbatches * stages  # batches follow each other
    schedule = catalog.make(name, stages, run, chunks)
    if stages * chunks == 1:
        return (), schedule
    if given is not None:
        return check_cuts(given, len(model.layers), stages * chunks), schedule
    costs = measure(model, np.zeros((size, *model.input_shape), model.dtype), state_vectors(config))
    return partition(costs, stages * chunks, None, schedule.in_flight_limit * chunks), schedule
