"""A rank of a model in pieces has its own share in memory, and never the whole, not even for a moment."""

import gc
import tracemalloc

import numpy as np
import pytest

import psgd
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.collectives import Communicator
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.tensor.plan import plan

WIDTH, BATCH, SEGMENT = 1536, 4, 1 << 20


def arrays():
    """Bytes of NumPy's arrays."""
    gc.collect()
    taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    return sum(trace.size for trace in taken.traces)


def train(comm, sizes, width):
    """Two steps. Returns bytes of this rank's parameters, of the whole model's, of arrays then, and of the peak."""
    pipe, tensor = sizes
    cuts = {1: (), 2: (2,), 4: (1, 2, 3)}[pipe]
    layers = (*[Linear(width, relu=True)] * 3, Linear(width))
    whole = Model(layers, (width,)).layout
    with ProcessMesh(comm, pipe=pipe, tensor=tensor) as mesh, Communicator(mesh.tensor) as ranks:
        model = Model(plan(layers, (width,), ranks, cuts), (width,))
        with Pipeline(mesh.pipe, model, cuts, batch=BATCH, crowded=True) as pipeline:
            place = {"pipe": mesh.coordinates["pipe"], "tensor": mesh.coordinates["tensor"]}
            part = ModelPart(mesh.world, mesh.replica, coordinates=place, layout=pipeline.layout, whole=whole)
            before, bottom = arrays(), tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            params = pipeline.init(1)
            with psgd.connect(mesh.data, params, part=part, strategy="allreduce", rule="adam", lr=1e-3) as ps:
                pipeline.bind(ps.params, ps.grads)
                x, y = np.ones((BATCH, width), np.float32), np.arange(BATCH)
                for _ in range(2):
                    ps.step(BATCH, pipeline.gradient(BATCH, x, y))
                peak = tracemalloc.get_traced_memory()[1] - bottom
                return 4 * pipeline.layout.size, 4 * whole.size, arrays() - before, peak


@pytest.mark.ranks(4, timeout=120)
@pytest.mark.parametrize("sizes", [(2, 2), (4, 1), (1, 4)], ids=str)
def test_parameters_gradients_and_state_are_a_quarter_of_the_whole(comm, sizes):
    tracemalloc.start()
    train(comm, sizes, 16)  # imports and compiles
    own, whole, kept, peak = train(comm, sizes, WIDTH)
    tracemalloc.stop()
    assert own == pytest.approx(whole / 4, rel=0.01)
    # Parameters, gradients, Adam's two vectors, and the segment in which a single worker would sum gradients.
    assert kept == pytest.approx(4 * whole / 4 + SEGMENT, rel=0.01)
    assert peak < 4 * whole / 4 + SEGMENT + 2 * WIDTH * WIDTH * 4  # and one weight as it is drawn
