"""Gradients and evaluations of a pipeline on GPUs, beside the whole model's on the host."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.backend.host import HostBackend
from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build
from psgd.parallel.pipeline import Pipeline


@pytest.mark.gpu
@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("keep", [True, False])
def test_gradients_and_evaluations_are_those_of_the_whole_model(comm, keep):
    xp = cupy()
    from psgd.collectives.device.pick_gpu import choose_device
    from psgd.training.pieces.cuda_pipeline_backend import CudaPipelineBackend

    choose_device(comm)
    dataset = load("digits")
    statistics = validate(dataset)
    model = build("mlp", dataset.sample_shape, dataset.classes, hidden=16)
    cuts = ((), (2,), (1, 2))[comm.size - 1]
    with Pipeline(comm, model, cuts, batch=20, microbatches=3, device="cuda") as pipeline:
        backend = CudaPipelineBackend(pipeline, comm, dataset, statistics, 20, keep=keep)
        params = xp.asarray(pipeline.init(3))
        backend.prepare(params)
        assert pipeline.counters.gradients == 0 and pipeline.on_gpu
        grads = xp.empty_like(params)
        backend.bind(params, grads)
        whole = build("mlp", dataset.sample_shape, dataset.classes, hidden=16)
        alone, first = HostBackend(whole, dataset, statistics, 20), whole.init(3)
        expected = np.empty_like(first)
        alone.bind(first, expected)
        for count in (20, 20, 17, 20, 20, 3):
            rows, touched = np.arange(5, 5 + count), []
            rows.flags.writeable = False
            loss = backend.gradient(rows, touch=lambda x, touched=touched: touched.append(len(x)))
            assert touched == ([count] if comm.rank == 0 else [])
            assert loss == pytest.approx(alone.gradient(rows), rel=1e-5)
            there = whole.layout.views(expected)
            for name, mine in pipeline.layout.views(grads.get()).items():
                np.testing.assert_allclose(mine, there[name], rtol=1e-4, atol=1e-6)
        seen, there = [], []
        backend.tally = lambda labels, predicted: seen.append(len(labels))
        alone.tally = lambda labels, predicted: there.append(len(labels))
        found, sums = (np.array([each.evaluate(part, 2) for part in (0, 1)]).sum(0) for each in (backend, alone))
        assert found[0] == sums[0] and found[1] == pytest.approx(sums[1], rel=1e-4)
        assert sum(seen) == (sum(there) if comm.rank == comm.size - 1 else 0)
        backend.wait()
    comm.Barrier()
