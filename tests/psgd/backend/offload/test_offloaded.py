"""Runs with `--offload` on a GPU: the bits of those without, in the memory that the docs say."""

import gc

import numpy as np
import pytest
from harness.device import cupy
from mpi4py import MPI

import psgd
from psgd.data import load
from psgd.data.normalization import AS_THEY_ARE, measure
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.optim import rules
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant
from psgd.worker import starter

pytestmark = pytest.mark.gpu
BATCH, STEPS = 16, 30


def run(model, what, rule, behind=0, by_parts=True, steps=STEPS, clip=0.0):
    """Losses, the final parameters, what an evaluation says."""
    cupy()
    import cupy as xp

    from psgd.backend.cuda import CudaBackend
    from psgd.backend.offload.bus import pinned_copy
    from psgd.backend.offload.offloaded import OffloadedBackend
    from psgd.metrics.run_metrics import RunMetrics

    dataset = load("genesis", 32) if model == "gpt" else load("digits")
    sizes = {"layers": 3, "width": 64, "heads": 2} if model == "gpt" else {"hidden": 24}
    made = build(model, dataset.sample_shape, dataset.classes, tokens=dataset.tokens, **sizes)
    params, statistics = made.init(3), AS_THEY_ARE if dataset.tokens else measure(dataset.train)
    updates = None
    if what is None:
        vector = xp.asarray(params)
        backend = CudaBackend(made, dataset, statistics, BATCH)
    else:
        updates = HostUpdates(3, pinned=True) if by_parts else None
        vector = pinned_copy(params)
        backend = OffloadedBackend(made, dataset, statistics, BATCH, what=what, updates=updates, behind=behind)
    backend.prepare(vector)
    worker = starter.create_local(vector, OptimizerOptions(rule, constant(0.01), clip), 1 << 16, RunMetrics(1), updates)
    worker.start()
    backend.bind(worker.params, worker.grads)
    rng, losses = np.random.default_rng(0), []
    for step in range(steps):
        rows = rng.integers(0, dataset.train.samples, BATCH if step % 5 else 7)
        backend.begin(0, 0, step)
        losses.append(backend.gradient(rows, worker.overlap(len(rows))))
        worker.step(len(rows), losses[-1])
        if step % 10 == 4 and not behind:
            losses.append(backend.evaluate(0, 1)[1])
    worker.finish()
    backend.bind(vector, np.zeros_like(vector))
    found = backend.evaluate(0, 1)
    final = vector if what else vector.get()
    return [float(each) for each in losses], final, found


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
@pytest.mark.parametrize("rule", [rules.sgd(), rules.nesterov(), rules.adam()], ids=lambda rule: rule.name)
@pytest.mark.parametrize(("what", "by_parts"), [("optimizer", True), ("optimizer", False), ("parameters", True)])
def test_bits_are_those_without(model, rule, what, by_parts):
    losses, params, evaluated = run(model, None, rule)
    again, final, found = run(model, what, rule, by_parts=by_parts)
    assert losses == again
    np.testing.assert_array_equal(params, final)
    assert evaluated == found


def test_one_step_behind_repeats_and_learns():
    first, again = (run("gpt", "optimizer", rules.adam(), behind=1, steps=60) for _ in range(2))
    assert first[0] == again[0] and first[2] == again[2]
    np.testing.assert_array_equal(first[1], again[1])
    assert first[0][0] == first[0][0] and np.mean(first[0][-5:]) < 0.9 * first[0][0]
    exact = run("gpt", "optimizer", rules.adam(), steps=60)
    assert exact[0][:1] == first[0][:1] and exact[0] != first[0]


@pytest.mark.parametrize("what", ["optimizer", "parameters"])
def test_memory(what):
    """Pool peak: two vectors and activations, or two layers and their gradients; activations are small here."""
    xp = cupy()
    from psgd.backend.offload.bus import CudaBus
    from psgd.backend.offload.kept_layers import KeptLayers
    from psgd.backend.offload.streamed_layers import StreamedLayers
    from psgd.estimate import activations
    from psgd.kernels.device import blas
    from psgd.launch.bench.pool_peak import PoolPeak

    blas.matmul(*(xp.ones((1, 1), np.float32) for _ in range(3)))  # takes the workspace of products, once for all
    width, layers, batch = 2048, 8, 64
    gc.collect()
    before, peak = xp.get_default_memory_pool().used_bytes(), PoolPeak()
    model = Model([*(Linear(width, relu=True) for _ in range(layers)), Linear(width)], (width,))
    place = (KeptLayers if what == "optimizer" else StreamedLayers)(model, CudaBus(), HostUpdates(1))
    params = model.init(0)
    place.bind(params, np.zeros_like(params))
    ctx = place.model.context(batch)
    x = xp.ones((batch, width), np.float32)
    for _ in range(3):  # by Python, recorded, by graphs
        place.begin()
        place.model.gradient(ctx, x, xp.zeros(batch, np.int64), place.ready)
        place.finish()
    used = peak.close() - before - x.nbytes
    layer = 4 * width * (width + 1)
    vectors = 2 * params.nbytes if what == "optimizer" else 2 * 2 * layer
    assert used == pytest.approx(vectors + activations.count(model, batch, device="cuda"), rel=0.05)


def test_connect_keeps_the_optimizer_on_the_host():
    xp = cupy()
    found = []
    for offload in (None, "optimizer"):
        params = xp.linspace(-1, 1, 5000, dtype=np.float32)
        with psgd.connect(MPI.COMM_SELF, params, rule="adam", lr=0.1, offload=offload) as ps:
            for step in range(5):
                ready = ps.overlap(3)
                ps.grads[:] = xp.asarray(np.random.default_rng(step).normal(size=5000).astype(np.float32)) + ps.params
                for part in (range(2000, 5000), range(2000)) if ready is not None else ():
                    ready(part)
                ps.step(3, 0.5)
        found.append(params.get())
    np.testing.assert_array_equal(*found)
