"""Pipelines whose stages are on GPUs: the bits of a program on one GPU that cuts alike. Also with a simulated GPU."""

import itertools
import types

import numpy as np
import pytest
from harness.device import cupy
from harness.fake_gpu import FakeGpu

from psgd.kernels.errors import UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import gpt
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten
from psgd.parallel import pipeline as module
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog

KEY, STEPS = 7, (8, 8, 7, 8, 8, 8, 1, 8, 8, 5, 8)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
MLP = Flatten(), Linear(12, relu=True), Linear(9), ReLU(), Linear(11, relu=True), Dropout(0.3), Linear(8), Linear(5)
PLACES = (pytest.param("simulated"), pytest.param("gpu", marks=pytest.mark.gpu))


def cuts_of(stages, layers):
    return tuple(layers * k // stages for k in range(1, stages))


class Sequential:
    """Parts in a row on one device, one microbatch after another, added in the schedule's order."""

    def __init__(self, xp, model, cuts, size, descending):
        ends = (0, *cuts, len(model.layers))
        self.xp, self.parts, self.size, self.descending = xp, [], size, descending
        for start, stop in itertools.pairwise(ends):
            part = model.cut(start, stop)
            params = xp.asarray(part.init(1))
            grads = xp.full_like(params, np.nan)
            part.bind(params, grads)
            self.parts.append((part, part.context(size, wants_dx=start > 0), params, grads))

    def gradient(self, x, y):
        n, losses, xp = len(x), {}, self.xp
        order = range(-(-n // self.size))
        for number, k in enumerate(reversed(order) if self.descending else order):
            here = slice(k * self.size, (k + 1) * self.size)
            z = xp.asarray(x[here].copy())
            for part, ctx, *_ in self.parts:
                ctx.draw(KEY, np.arange(n)[here])
                z = part.forward(ctx, z)
            part, ctx, *_ = self.parts[-1]
            dy, losses[k] = part.loss(ctx, xp.asarray(y[here]), batch_size=n)
            for part, ctx, *_ in self.parts[::-1]:
                dy = part.backward(ctx, dy, accumulate=number > 0)
        self.tie()
        return sum(losses[k] for k in order)

    def tie(self):
        """A parameter of several parts has the sum of its gradients, in the order of the parts."""
        held = {}
        for part, _, _, grads in self.parts:
            for name, view in part.layout.views(grads).items():
                held.setdefault(part.names_in_whole[name], []).append(view)
        for views in held.values():
            total = views[0] if len(views) == 1 else self.xp.asarray(sum(map(values, views[1:]), values(views[0])))
            for view in views[1:] and views:
                view[...] = total


def values(array):
    return array if isinstance(array, np.ndarray) else array.get()


def at(place, comm, monkeypatch, reaches=True):
    """NumPy or CuPy, and the simulated GPU if it is one."""
    if place == "gpu":
        xp = cupy()
        from psgd.collectives.device.pick_gpu import choose_device

        choose_device(comm)
        return xp, None
    fake = FakeGpu(reaches)
    monkeypatch.setattr(module, "_gpu", lambda: fake)
    return np, fake


def compare(comm, place, model, make, schedule, microbatches, monkeypatch, reaches=True, steps=STEPS):
    """Takes the same steps here and in a row."""
    xp, fake = at(place, comm, monkeypatch, reaches)
    chunks = 2 if catalog.SCHEDULES[schedule].chunks else 1
    cuts = cuts_of(comm.size * chunks, len(model.layers))
    order = catalog.make(schedule, comm.size, microbatches, chunks).gradient_order
    with Pipeline(comm, model, cuts, schedule, batch=8, microbatches=microbatches, device="cuda") as pipeline:
        if fake is not None:
            fake.stages = pipeline._captured
        oracle = Sequential(xp, model, cuts, -(-8 // microbatches), order == "descending")
        params = xp.asarray(pipeline.init(1))
        grads = xp.full_like(params, np.nan)
        pipeline.bind(params, grads)
        for step, n in enumerate(steps):
            x, y = make(n, step)
            pipeline.draw(KEY, np.arange(n))
            assert pipeline.gradient(n, x, y if step % 2 else xp.asarray(y)) == oracle.gradient(x, y), step
            mine, there = pipeline.layout.views(values(grads)), {}
            for number, (part, _, own, gradient) in enumerate(oracle.parts):
                if number % comm.size == comm.rank:
                    there |= part.layout.views(values(gradient))
                xp.subtract(own, np.float32(0.1) * gradient, out=own)
            assert list(mine) == list(there)
            for name, view in there.items():
                assert np.array_equal(mine[name], view), (step, name)
            params -= np.float32(0.1) * grads
            if step == 4:
                right, loss = pipeline.evaluate(n, x, y)
                assert 0 <= right <= n and loss > 0
        assert fake is None or (fake.launched > 10) == fake.captures
    comm.Barrier()


def images(n, step):
    rng = np.random.default_rng([n, step])
    return rng.standard_normal((n, 2, 3)).astype(np.float32), rng.integers(0, 5, n)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("place", PLACES)
def test_bits_of_a_program_on_one_gpu(comm, place, schedule):
    with pytest.MonkeyPatch.context() as patch:
        for microbatches in (1, 4) if schedule != "interleaved" else (comm.size * 2,):
            compare(comm, place, Model(MLP, (2, 3)), images, schedule, microbatches, patch)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_text_by_a_transformer(comm, place):
    model = Model(gpt.layers((6,), 11, layers=2, width=8, heads=2), (6,))

    def text(n, step):
        tokens = np.random.default_rng([n, step]).integers(0, 11, (n, 7))
        return tokens[:, :-1].astype(np.float32), tokens[:, 1:]

    with pytest.MonkeyPatch.context() as patch:
        compare(comm, place, model, text, "1f1b", 4, patch, steps=STEPS[:6])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_by_way_of_the_hosts(comm, place):
    with pytest.MonkeyPatch.context() as patch:
        if place == "gpu":
            patch.setenv("PSGD_SHARED", "0")
        compare(comm, place, Model(MLP, (2, 3)), images, "1f1b", 4, patch, reaches=False)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_without_graphs_and_with_large_messages(comm, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("psgd.parallel.stages.device_slots.LARGE_BYTES", 1)
        compare(comm, place, Model(MLP, (2, 3)), images, "1f1b", 4, patch)
        patch.setenv("PSGD_CUDA_GRAPHS", "0")
        patch.setattr(FakeGpu, "captures", False)
        compare(comm, place, Model(MLP, (2, 3)), images, "zero-bubble", 4, patch, steps=STEPS[:4])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_one_stage_is_raised_on_all(comm, place):
    with pytest.MonkeyPatch.context() as patch:
        xp, _ = at(place, comm, patch)
        pipeline = Pipeline(comm, Model(MLP, (2, 3)), (4,), batch=8, microbatches=4, device="cuda")
        params = xp.asarray(pipeline.init(1))
        pipeline.bind(params, xp.zeros_like(params))
        for step in range(3):
            pipeline.draw(KEY, np.arange(8))
            pipeline.gradient(8, *images(8, step))
        x, y = images(8, 3)
        with pytest.raises(UsageError, match="labels on the last stage, got 7"), pipeline:
            pipeline.gradient(8, x, y[:7])
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_vector_on_the_host_is_refused(comm):
    with Pipeline(comm, Model(MLP, (2, 3)), (4,), batch=4) as pipeline:
        pipeline._xp = types.SimpleNamespace(__name__="cupy")
        with pytest.raises(UsageError, match="bind: params: expected a vector of cupy, as"):
            pipeline.bind(pipeline.init(1))
