"""A transformer in pieces whose first and last stage share a table: clipped, saved and resumed as one parameter."""

import numpy as np
import pytest

import psgd
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.collectives import Communicator
from psgd.nn.model import Model
from psgd.nn.models.gpt import layers
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.tensor.plan import plan

TOKENS, VOCABULARY, BATCH, CLIP = 6, 11, 4, 0.2
GPT = layers((TOKENS,), VOCABULARY, 2, 8, 2)
CUTS = {1: (), 2: (4,), 4: (1, 3, 5)}


def samples(step):
    rng = np.random.default_rng(step)
    return rng.integers(0, VOCABULARY, (BATCH, TOKENS)).astype(np.float32), rng.integers(0, VOCABULARY, (BATCH, TOKENS))


def train(comm, pipe, tensor, steps, **options):
    """One copy of the model, one microbatch a step; returns this rank's layout and its parameters by name."""
    whole = Model(GPT, (TOKENS,))
    with ProcessMesh(comm, pipe=pipe, tensor=tensor) as mesh, Communicator(mesh.tensor) as ranks:
        model = Model(plan(GPT, (TOKENS,), ranks, CUTS[pipe]), (TOKENS,))
        with Pipeline(mesh.pipe, model, CUTS[pipe], batch=BATCH, crowded=True) as pipeline:
            place = {"pipe": mesh.coordinates["pipe"], "tensor": mesh.coordinates["tensor"]}
            part = ModelPart(mesh.world, mesh.replica, coordinates=place, layout=pipeline.layout, whole=whole.layout)
            params = pipeline.init(1)
            options = {"strategy": "allreduce", "rule": "momentum", "lr": 0.05} | options
            with psgd.connect(mesh.data, params, part=part, clip_norm=CLIP, **options) as ps:
                for step in range(ps.clock, steps):
                    pipeline.bind(ps.params, ps.grads)
                    ps.step(BATCH, pipeline.gradient(BATCH, *samples(step)))
            comm.Barrier()  # rank 0 has published what there is
            return pipeline.layout, {name: view.copy() for name, view in pipeline.layout.views(params).items()}


def alone(comm, steps):
    """The same on one rank of its own, on all; by both names of the shared table."""
    own = comm.Split(comm.rank)
    layout, params = train(own, 1, 1, steps)
    own.Free()
    return params | {name: params[same] for name, same in layout.tied}


@pytest.mark.ranks(2, 4)
def test_stages_that_share_a_table_have_the_bits_of_one(comm):
    _, params = train(comm, comm.size, 1, 15)
    expected = alone(comm, 15)
    for name, value in params.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.ranks(4)
def test_a_shared_table_is_resumed_in_other_pieces(comm, tmp_path):
    """Cuts by tensor sum in another order, so they are compared to rounding."""
    save = {"checkpoint_dir": tmp_path, "checkpoint_every": 5}
    train(comm, 4, 1, 10, **save)
    for pipe, tensor in ((2, 2), (1, 4), (4, 1)):
        layout, params = train(comm, pipe, tensor, 15, checkpoint_dir=tmp_path, resume=True)
        expected = alone(comm, 15)
        for parameter in layout.parameters:
            whole = expected[parameter.name][parameter.slices]
            exact = np.testing.assert_array_equal if tensor == 1 else np.testing.assert_allclose
            exact(params[parameter.name], whole, **({} if tensor == 1 else {"rtol": 1e-4, "atol": 1e-6}))
