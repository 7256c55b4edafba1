"""Whole runs of models in pieces with and without sharding, with delays, for comparison bit by bit."""

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import psgd
from harness.sharded_runs import batch
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.nn.model import Model
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.sharded.pieces.sharded_pipeline import ShardedPipeline
from psgd.runtime.device_vectors import on_host


def run(
    mesh: ProcessMesh,
    model: Model,
    shard: int,
    cuts: Sequence[int],
    schedule: str,
    microbatches: int,
    steps: int = 9,
    accumulate: int = 1,
    device: str = "cpu",
    gpu: Any = None,
) -> tuple[list[Any], Any]:
    """Losses, an evaluation of what each copy has, and this rank's final parameters, whole, on the host.

    Args:
        mesh: all ranks.
        model: on no vector yet.
        shard: 0, 2 or 3.
        cuts: as of a pipeline, as are the following.
        schedule: its name.
        microbatches: of a batch.
        steps: of each copy.
        accumulate: steps to an update.
        device: of the stages.
        gpu: a simulated one, which is to be told of the stages.
    """
    how: dict[str, Any] = {"batch": 6, "microbatches": microbatches, "device": device}
    exchange: Any = None
    if shard:
        more = {"copies": mesh.data, "shard": shard, "seed": 3, "steps": accumulate}
        pipeline: Pipeline = ShardedPipeline(mesh.pipe, model, cuts, schedule, **how, **more)
        assert isinstance(pipeline, ShardedPipeline)
        exchange = pipeline.exchange
        params = exchange.params
    else:
        pipeline = Pipeline(mesh.pipe, model, cuts, schedule, **how)
        params = pipeline._xp.asarray(pipeline.init(3))
    if gpu is not None:
        gpu.stages = pipeline._captured
    where = {"pipe": mesh.coordinates["pipe"]} if "pipe" in mesh.coordinates else {}
    part = ModelPart(mesh.world, mesh.replica, coordinates=where, layout=pipeline.layout, whole=model.layout)
    options = {"rule": "adam", "lr": 0.01, "clip_norm": 0.1, "accumulate": accumulate, "shard": exchange or 0}
    chance = random.Random(mesh.world.Get_rank())
    losses: list[Any] = []
    with (
        pipeline,
        psgd.connect(mesh.data, params, strategy="allreduce", layout=pipeline.layout, part=part, **options) as ps,
    ):
        pipeline.bind(ps.params, ps.grads)
        for step in range(steps):
            x, y = batch(model, ps.worker, step)
            pipeline.draw(step, np.arange(len(x)) + 100 * ps.worker)
            if chance.random() < 0.3:
                time.sleep(chance.random() * 0.004)
            loss = pipeline.gradient(len(x), x, y, ps.overlap(len(x))) if len(x) else 0.0
            losses.append(loss)
            ps.step(len(x), loss)
        x, y = batch(model, 0, 4 if ps.worker else 7)  # one copy has 6 samples, the other one none
        together = {"most": 6} if shard == 3 else {}
        losses.append(pipeline.evaluate(len(x), x, y, **together))
        own = np.array(on_host(params))
    if shard != 3:
        return losses, own
    whole = np.empty(exchange.slices.whole, own.dtype)
    for unit, each in enumerate(exchange.slices.units):
        counts = list(exchange.slices.counts(unit))
        mine = np.ascontiguousarray(own[exchange.slices.place(unit)])
        mesh.data.Allgatherv(mine, [whole[each.start : each.stop], counts])
    return losses, whole
