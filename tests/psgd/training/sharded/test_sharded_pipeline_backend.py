"""Copies that share a model evaluate it together: each its part, in as many passes, also where one has fewer."""

import numpy as np
import pytest

from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.sharded.pieces.sharded_pipeline import ShardedPipeline
from psgd.training.pieces.pipeline_backend import PipelineBackend
from psgd.training.sharded.sharded_pipeline_backend import ShardedPipelineBackend


@pytest.mark.ranks(4)
def test_evaluations_and_gradients(comm):
    digits = load("digits")
    statistics, how = validate(digits), {"batch": 20, "microbatches": 3}
    with ProcessMesh(comm, pipe=2, data=2) as mesh:
        model = build("mlp", digits.sample_shape, digits.classes, hidden=16)
        common = mesh.pipe, digits, statistics, 20
        with Pipeline(mesh.pipe, model, (2,), **how) as whole:
            plain, params = PipelineBackend(whole, *common), whole.init(3)
            plain.bind(params, grads := np.empty_like(params))
            plain._at_once = 70  # of 300 samples: 3 passes of one copy, 2 of the other
            rows = np.arange(20)
            loss, found = plain.gradient(rows), [plain.evaluate(part, 2) for part in (0, 1)]
        for shard in (2, 3):
            more = {"copies": mesh.data, "shard": shard, "seed": 3}
            with ShardedPipeline(mesh.pipe, model, (2,), **how, **more) as pipeline:
                backend = ShardedPipelineBackend(pipeline, *common)
                backend.prepare(pipeline.exchange.params)
                backend._at_once = 70
                assert backend.gradient(rows) == loss
                own = np.concatenate([grads[part.start : part.stop] for part in pipeline.exchange.slices.own])
                np.testing.assert_array_equal(pipeline.exchange.own, 40 * own)
                assert backend.evaluate(mesh.coordinates["data"], 2) == found[mesh.coordinates["data"]]
