"""Stages of a pipeline that are cut by tensor too: by every schedule the gradient of the whole model."""

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.reshape import Flatten
from psgd.nn.residual import Residual
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.parallel.tensor.plan import plan

LAYERS = (
    Flatten(),
    Linear(12, relu=True),
    Linear(9),
    Residual((Linear(13, relu=True), Linear(9))),
    Linear(11, relu=True),
    Linear(5),
)
SHAPE, CLASSES, BATCH = (2, 3), 5, 11
CUTS = {1: (3,), 2: (2, 3, 4)}
"""By the stages of each of two ranks."""
SCHEDULES = [name for name, entry in catalog.SCHEDULES.items() if entry.trains and entry.flushes]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_stages_of_two_ranks(comm, schedule):
    cuts = CUTS[2 if schedule == "interleaved" else 1]
    across, along = comm.Split(comm.rank // 2, comm.rank), comm.Split(comm.rank % 2, comm.rank)
    whole = Model(LAYERS, SHAPE, np.float64)
    first = whole.init(1)
    grads = np.empty_like(first)
    whole.bind(first, grads)
    context = whole.context(BATCH)
    with Communicator(across) as tensor:
        model = Model(plan(LAYERS, SHAPE, tensor, cuts), SHAPE, np.float64)
        pipeline = Pipeline(along, model, cuts, schedule, batch=BATCH, microbatches=4, crowded=True)
        mine = pipeline.init(1)
        own = np.full_like(mine, np.nan)
        pipeline.bind(mine, own)
        for n in (BATCH, 7, 1):
            rng = np.random.default_rng(n)
            x, y = rng.standard_normal((n, *SHAPE)), rng.integers(0, CLASSES, n)
            expected = whole.gradient(context, x, y)
            assert pipeline.gradient(n, x, y) == pytest.approx(expected, rel=1e-10)
            theirs, ours = whole.layout.views(grads), pipeline.layout.views(own)
            for p in pipeline.layout.parameters:
                np.testing.assert_allclose(ours[p.name], theirs[p.name][p.slices], rtol=1e-9, atol=1e-12)
            right, loss = pipeline.evaluate(n, x, y)
            assert right == whole.evaluate(context, x, y)[0] and loss == pytest.approx(n * expected, rel=1e-10)
        sizes = comm.allgather(sum(p.size for p in pipeline.layout.parameters))
        assert all(size < 0.4 * len(first) for size in sizes)
        pipeline.close()
    across.Free()
    along.Free()
