"""PipeDream on GPUs, or on a simulated one: the bits of delayed updates on one GPU, and few graphs."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from harness import delayed
from harness.device import cupy
from harness.fake_gpu import FakeGpu

from psgd.kernels.errors import PeerLostError, UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import Constant
from psgd.parallel import pipeline as module_of_pipelines
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.tensor.plan import plan

SHAPE, CLASSES = (6,), 5
LAYERS = Linear(12, relu=True), Linear(9), Dropout(0.3), ReLU(), Linear(11, relu=True), Linear(7, relu=True), Linear(5)
CUTS = {1: (), 2: (3,), 3: (1, 4), 4: (1, 3, 5)}
PLACES = (pytest.param("simulated"), pytest.param("gpu", marks=pytest.mark.gpu))
SEVERAL = (pytest.param(1, False), pytest.param(4, False), pytest.param(4, True))
"""Microbatches of a step, and whether there are two versions of the weights."""


@contextlib.contextmanager
def device_of(place, comm, reaches=True):
    """NumPy or CuPy, and the simulated GPU if it is one; without `reaches` no GPU maps another's memory."""
    with pytest.MonkeyPatch.context() as patch:
        if place == "gpu":
            xp = cupy()
            from psgd.collectives.device.pick_gpu import choose_device

            choose_device(comm)
            if not reaches:
                patch.setenv("PSGD_SHARED", "0")
            yield xp, None, patch
        else:
            fake = FakeGpu(reaches)
            patch.setattr(module_of_pipelines, "_gpu", lambda: fake)
            yield np, fake, patch
    comm.Barrier()


def options():
    return OptimizerOptions(create("momentum", 0.9, 1e-3), Constant(0.05))


def batch_of(step, n):
    rng = np.random.default_rng(step)
    return rng.standard_normal((n, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, n)


def draws_of(step, n):
    return step, np.arange(n) + 1000 * step


def made(comm, fake, **named):
    pipeline = PipeDream(comm, Model(LAYERS, SHAPE), CUTS[comm.size], batch=8, device="cuda", **named)
    if fake is not None:
        fake.stages = pipeline._captured
    return pipeline


def simulation(xp, ranks, size):
    return delayed.Simulation(Model(LAYERS, SHAPE), CUTS[ranks], options(), 1, size, xp)


def delay_of(ranks, microbatches, two):
    return delayed.two_versions if two else delayed.stashed(ranks, microbatches)


def steps_of(counts, first):
    found = ((first + step, n) for step, n in enumerate(counts))
    return [delayed.Step(*batch_of(step, n), *draws_of(step, n)) for step, n in found]


def compare(comm, xp, pipeline, microbatches, two, calls=((8,) * 30 + (3,), (8,) * 9)):
    """Trains here and in a row on one device, in several calls, with an evaluation and a whole gradient in between."""
    oracle = simulation(xp, comm.size, -(-8 // microbatches))
    optimizer = Optimizer(xp.asarray(pipeline.init(1)), options())
    delay, first = delay_of(comm.size, microbatches, two), 0
    for counts in calls:

        def batches(step, first=first, counts=counts):
            x, y = batch_of(first + step, counts[step])
            return (xp.asarray(x), y) if step % 2 else (x, xp.asarray(y))

        loss = pipeline.train(
            optimizer,
            sum(counts),
            batches,
            lambda step, first=first, counts=counts: draws_of(first + step, counts[step]),
        )
        assert loss == oracle.run(steps_of(counts, first), delay)
        wanted = oracle.params[comm.rank]
        assert xp.array_equal(optimizer.params, wanted)
        first += len(counts)
        right, _ = pipeline.evaluate(8, *batch_of(first, 8))
        assert 0 <= right <= 8
        pipeline.draw(first, np.arange(8))
        assert np.isfinite(pipeline.gradient(8, *batch_of(first, 8)))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize(("microbatches", "two"), SEVERAL)
@pytest.mark.parametrize("place", PLACES)
def test_bits_of_delayed_updates_on_one_gpu(comm, place, microbatches, two):
    with (
        device_of(place, comm) as (xp, fake, _),
        made(comm, fake, microbatches=microbatches, two_versions=two) as pipeline,
    ):
        compare(comm, xp, pipeline, microbatches, two)
        assert fake is None or fake.launched > 50
        assert pipeline.versions_most <= (2 if two else comm.size - comm.rank)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(("microbatches", "two"), SEVERAL)
def test_another_call_records_nothing_more(comm, microbatches, two):
    with (
        device_of("simulated", comm) as (_, fake, _),
        made(comm, fake, microbatches=microbatches, two_versions=two) as pipeline,
    ):
        optimizer = Optimizer(pipeline.init(1), options())

        def train(steps):
            pipeline.train(optimizer, 8 * steps, lambda step: batch_of(step, 8), lambda step: draws_of(step, 8))
            return fake.recorded

        train(80)
        recorded, launched = train(80), fake.launched
        assert train(80) == recorded
        assert fake.launched - launched >= 80 * microbatches * 2  # all passes are graphs
        # Contexts and versions are as many as microbatches in flight; passes are F, L, X, W or B.
        flying = comm.size - comm.rank
        assert recorded <= 2 * 4 * flying * (flying + 1)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_by_way_of_the_hosts_and_without_graphs(comm, place):
    with device_of(place, comm, reaches=False) as (xp, fake, _), made(comm, fake, microbatches=4) as pipeline:
        compare(comm, xp, pipeline, 4, False, calls=((8,) * 9,))
    with device_of(place, comm) as (xp, fake, patch):
        patch.setattr("psgd.parallel.stages.device_slots.LARGE_BYTES", 1)
        patch.setenv("PSGD_CUDA_GRAPHS", "0")
        patch.setattr(FakeGpu, "captures", False)
        with made(comm, fake, microbatches=4, two_versions=True) as pipeline:
            compare(comm, xp, pipeline, 4, True, calls=((8,) * 9,))
            assert fake is None or not fake.launched


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_computed_twice_has_the_same_bits(comm, place):
    with (
        device_of(place, comm) as (xp, fake, _),
        made(comm, fake, recompute=lambda stage: stage.recomputed([range(2)])) as pipeline,
    ):
        compare(comm, xp, pipeline, 1, False, calls=((8,) * 30,))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("place", PLACES)
def test_samples_are_made_anew_where_older_ones_were(comm, place):
    with device_of(place, comm) as (xp, fake, _), made(comm, fake) as pipeline:
        ring = [(xp.empty((8, *SHAPE), np.float32), xp.empty(8, np.int64)) for _ in range(comm.size)]

        def batches(step):
            for into, values in zip(ring[step % len(ring)], batch_of(step, 8), strict=True):
                into[...] = xp.asarray(values)  # on the current stream, behind the passes of the step that was there
            return ring[step % len(ring)]

        optimizer, oracle = Optimizer(xp.asarray(pipeline.init(1)), options()), simulation(xp, 3, 8)
        loss = pipeline.train(optimizer, 8 * 40, batches, lambda step: draws_of(step, 8))
        assert loss == oracle.run(steps_of((8,) * 40, 0), delayed.stashed(3))
        assert xp.array_equal(optimizer.params, oracle.params[comm.rank])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_fails_stops_the_others(comm, place):
    with device_of(place, comm) as (xp, fake, _):
        pipeline = made(comm, fake)
        optimizer = Optimizer(xp.asarray(pipeline.init(1)), options())

        def broken(step):
            if step == 9 and comm.Get_rank() == 0:
                raise ZeroDivisionError
            return batch_of(step, 8)

        with pytest.raises(ZeroDivisionError if comm.Get_rank() == 0 else PeerLostError):
            pipeline.train(optimizer, 800, broken, lambda step: draws_of(step, 8))
        comm.Barrier()
        pipeline.close()


@pytest.mark.ranks(2)
def test_layers_that_are_cut_by_tensor_are_refused(comm):
    layers = plan(LAYERS, SHAPE, SimpleNamespace(size=2, rank=0), CUTS[2])
    with (
        device_of("simulated", comm),
        pytest.raises(UsageError, match="device: expected cpu with layers that are cut by tensor, got cuda and a part"),
    ):
        PipeDream(comm, Model(layers, SHAPE), CUTS[2], batch=8, device="cuda")


@pytest.mark.ranks(2)
@pytest.mark.gpu
def test_parameters_on_the_host_are_refused(comm):
    with device_of("gpu", comm):
        pipeline = made(comm, None)
        with pytest.raises(UsageError, match="expected a vector of cupy"):
            pipeline.train(Optimizer(pipeline.init(1), options()), 8, lambda step: batch_of(step, 8))
        comm.Barrier()
        pipeline.close()
