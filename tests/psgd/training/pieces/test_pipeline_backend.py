import numpy as np
import pytest

from psgd.backend.host import HostBackend
from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build
from psgd.parallel.pipeline import Pipeline
from psgd.training.pieces.pipeline_backend import PipelineBackend


@pytest.mark.ranks(1, 2, 3)
def test_gradients_and_evaluations_are_those_of_the_whole_model(comm):
    dataset = load("digits")
    statistics = validate(dataset)
    model = build("mlp", dataset.sample_shape, dataset.classes, hidden=16)
    cuts = ((), (2,), (1, 2))[comm.size - 1]
    with Pipeline(comm, model, cuts, batch=20, microbatches=3) as pipeline:
        backend = PipelineBackend(pipeline, comm, dataset, statistics, 20)
        params = pipeline.init(3)
        backend.prepare(params)
        assert pipeline.counters.gradients == 0
        grads = np.empty_like(params)
        backend.bind(params, grads)
        rows, touched = np.arange(5, 22), []
        rows.flags.writeable = False
        loss = backend.gradient(rows, touch=lambda x: touched.append(len(x)))
        assert touched == ([17] if comm.rank == 0 else [])
        whole = build("mlp", dataset.sample_shape, dataset.classes, hidden=16)
        alone, first = HostBackend(whole, dataset, statistics, 20), whole.init(3)
        expected = np.empty_like(first)
        alone.bind(first, expected)
        assert loss == pytest.approx(alone.gradient(rows), rel=1e-6)
        there = whole.layout.views(expected)
        for name, mine in pipeline.layout.views(grads).items():
            np.testing.assert_allclose(mine, there[name], rtol=1e-5, atol=1e-7)
        seen, there = [], []
        backend.tally = lambda labels, predicted: seen.append((labels.tolist(), predicted.tolist()))
        alone.tally = lambda labels, predicted: there.append((labels.tolist(), predicted.tolist()))
        found = [backend.evaluate(part, 2) for part in (0, 1)]
        sums = [alone.evaluate(part, 2) for part in (0, 1)]
        assert sum(right for right, _ in found) == sum(right for right, _ in sums)
        assert sum(loss for _, loss in found) == pytest.approx(sum(loss for _, loss in sums), rel=1e-5)
        one, other = ([sum((part[i] for part in told), []) for i in (0, 1)] for told in (seen, there))  # noqa: RUF017
        assert one == (other if comm.rank == comm.size - 1 else [[], []])
        backend.wait()
