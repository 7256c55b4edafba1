"""Sharded pipelines beside unsharded ones, bit by bit: batches of all sizes, delays, shared tables, accumulation."""

import contextlib
import random
import time

import numpy as np
import pytest
from harness.sharded_runs import batch, mlp, tied

import psgd
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.sharded import near_gathers, units
from psgd.parallel.sharded.pieces.sharded_pipeline import ShardedPipeline


def run(mesh, model, shard, cuts, schedule, microbatches, steps=9, accumulate=1):
    """Losses, evaluation of what each copy has, and this rank's final parameters, whole."""
    how = {"batch": 6, "microbatches": microbatches}
    if shard:
        more = {"copies": mesh.data, "shard": shard, "seed": 3, "steps": accumulate}
        pipeline = ShardedPipeline(mesh.pipe, model, cuts, schedule, **how, **more)
        params, exchange = pipeline.exchange.params, pipeline.exchange
    else:
        pipeline, exchange = Pipeline(mesh.pipe, model, cuts, schedule, **how), None
        params = pipeline.init(3)
    where = {"pipe": mesh.coordinates["pipe"]}
    part = ModelPart(mesh.world, mesh.replica, coordinates=where, layout=pipeline.layout, whole=model.layout)
    options = {"rule": "adam", "lr": 0.01, "clip_norm": 0.1, "accumulate": accumulate, "shard": exchange or 0}
    chance = random.Random(mesh.world.rank)
    losses = []
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
        if shard == 3:
            whole = np.empty(exchange.slices.whole, params.dtype)
            for unit, each in enumerate(exchange.slices.units):
                counts = list(exchange.slices.counts(unit))
                mesh.data.Allgatherv(params[exchange.slices.place(unit)], [whole[each.start : each.stop], counts])
            return losses, whole
        return losses, params.copy()


@pytest.mark.ranks(4, timeout=150)
def test_bits_are_those_of_the_unsharded_pipeline(comm):
    def bare():
        return Model([ReLU(), Linear(9), Linear(5)], (7,))

    cases = [
        (lambda: mlp(7), (3,), "1f1b", 3),
        (lambda: mlp(7), (1, 2, 4), "interleaved", 2),
        (lambda: mlp(7), (2,), "zero-bubble", 3),
        (lambda: mlp(7), (2,), "gpipe", 1),
        (tied, (2,), "1f1b", 1),
        (bare, (1,), "1f1b", 2),  # a stage without parameters
    ]
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, 64
    with ProcessMesh(comm, pipe=2, data=2) as mesh, contextlib.ExitStack() as after:
        after.callback(setattr, units, "SMALLEST_BYTES", before)
        for make, *how in cases:
            losses, params = run(mesh, make(), 0, *how)
            assert np.isfinite(params).all()
            for shard in (2, 3):
                found = run(mesh, make(), shard, *how)
                assert found[0] == losses, (shard, how)
                np.testing.assert_array_equal(found[1], params, err_msg=f"{shard} {how}")
        with pytest.MonkeyPatch.context() as patch:  # as on several nodes, where gathers have an order
            patch.setattr(near_gathers, "possible", lambda *_: False)
            for make, *how in cases[:2]:
                whole, far = run(mesh, make(), 0, *how), run(mesh, make(), 3, *how)
                assert far[0] == whole[0]
                np.testing.assert_array_equal(far[1], whole[1])
        for make, *how in (cases[0], cases[3]):
            losses, params = run(mesh, make(), 0, *how, accumulate=3)
            found = [run(mesh, make(), shard, *how, accumulate=3) for shard in (2, 3)]
            assert found[0][0] == found[1][0]
            np.testing.assert_array_equal(found[0][1], found[1][1])
            np.testing.assert_allclose(found[0][1], params, atol=1e-4)
