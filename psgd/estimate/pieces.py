"""The memory of ranks that hold a model in pieces: a stage of a pipeline each, or parts of its layers."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from psgd.config import TrainConfig
from psgd.estimate import activations
from psgd.estimate.rank_memory import (
    ACTIVATIONS,
    BATCH,
    EVALUATION,
    SHARED_GRADIENTS,
    WORKSPACE,
    Estimate,
    of_vectors,
    shared_gradients,
    state_vectors,
    workspace,
)
from psgd.estimate.sharded_vectors import largest_unit
from psgd.kernels.notice import in_mesh
from psgd.nn.evaluation import evaluated_at_once
from psgd.nn.model import Model
from psgd.nn.stage import Stage
from psgd.parallel.cuts.decision import Decision
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.schedules.schedule import Schedule

LAYER, LINKS = "a layer's gradient of a microbatch", "messages between stages"
STASHED = "older weights of passes under way"


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
    wish = Decision(stages, config.batch_size, config.microbatches, config.pipe_schedule, config.cut)
    cuts, size = wish.cuts(model, state_vectors(config)), wish.size
    schedule = wish.plan(cuts)
    ends = (0, *cuts, len(model.layers))
    sample = int(np.prod(model.input_shape)) * model.dtype.itemsize + 8
    found: list[Estimate] = []
    for pipe in range(stages):
        for tensor in range(ranks):
            part = _part(model, ranks, tensor, cuts)
            places = range(pipe, len(ends) - 1, stages)
            mine = [activations.recomputed(part.cut(ends[k], ends[k + 1]), config.recompute, size) for k in places]
            shards = config.shard in (2, 3) and workers > 1
            whole = shards and _adds_up(part, ends, mine, wish, schedule)
            passes = {
                ACTIVATIONS: _alive(mine, schedule, pipe, size),
                EVALUATION: evaluated_at_once(model.tokens, config.device, in_pieces=True) * sample,
                BATCH: config.batch_size * sample,
                SHARED_GRADIENTS: sum(map(shared_gradients, mine)),
                WORKSPACE: workspace(config.device),
                LINKS: _links(mine, model, cuts, wish, pipe),
                LAYER: max(map(largest_unit if shards else _largest_layer, mine)) if wish.microbatches > 1 else 0,
            }
            vector = sum(stage.layout.size for stage in mine) * model.dtype.itemsize
            if not schedule.flushes:
                older = 1 if schedule.name == "pipedream-2bw" else stages - pipe - 1
                passes[STASHED] = older * vector
            place = in_mesh({"pipe": pipe, "tensor": tensor}, {"pipe": stages, "tensor": ranks})
            more = (ranks > 1) + (whole and config.shard == 3 and config.device == "cpu")
            for each in of_vectors(config, vector, servers, workers, passes, *mine, communicators=more, whole=whole):
                found.append(replace(each, role=f"{each.role} {place}"))
    return found


def _part(model: Model, ranks: int, rank: int, cuts: Cuts) -> Model:
    """The model as one of the tensor ranks has it."""
    if ranks == 1:
        return model
    from psgd.parallel.tensor.plan import plan  # loads MPI

    there = cast(Any, _Ranks(ranks, rank))
    return Model(plan(model.layers, model.input_shape, there, cuts), model.input_shape, model.dtype)


def _alive(stages: Sequence[Stage], schedule: Schedule, pipe: int, size: int) -> int:
    """Activations of all microbatches that are alive at once, the same number for each stage of a rank."""
    limit = -(-schedule.in_flight_limit[pipe] // len(stages))
    return limit * sum(activations.count(stage, size, pipe + k > 0) for k, stage in enumerate(stages))


def _links(mine: Sequence[Stage], model: Model, cuts: Cuts, wish: Decision, pipe: int) -> int:
    """Bytes of the slots where messages from other stages arrive at this one."""
    if not cuts:
        return 0
    from psgd.parallel.stages import links  # loads MPI

    depths = links.depths(wish.schedule, wish.ranks, len(mine), -(-wish.batch // wish.size))
    edges = links.edges([model.shapes[cut] for cut in cuts], wish.ranks, depths)
    return links.bytes_of(edges, pipe, wish.size, model.dtype)


def _adds_up(part: Model, ends: Sequence[int], mine: Sequence[Stage], wish: Decision, schedule: Schedule) -> bool:
    """Whether a sharded rank's gradient is the sum of several passes or of several ranks, and so kept whole."""
    halves = any(each.kind == "W" for program in schedule.programs for each in program)
    if wish.microbatches > 1 or len(mine) > 1 or halves:
        return True
    others = [part.cut(start, stop).names_in_whole.values() for start, stop in itertools.pairwise(ends)]
    return any(sum(name in names for names in others) > 1 for name in mine[0].names_in_whole.values())


def _largest_layer(stage: Stage) -> int:
    """Bytes of the largest layer's gradient, which is made apart where it is added to those of microbatches before."""
    sizes = [sum(math.prod(spec.shape) for spec in step.specs) for step in stage.steps]
    return max(sizes) * int(stage.dtype.itemsize)
