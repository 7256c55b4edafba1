"""Samples of several steps on a GPU, played with NumPy; and steps on GPUs beside those of the host."""

import contextlib
import functools
import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from harness.device import cupy
from harness.fake_gpu import FakeGpu
from harness.played_cupy import played_cupy

from psgd.data import load
from psgd.data.batches import Batches
from psgd.data.normalization import validate
from psgd.nn.models import build
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import Constant
from psgd.parallel import pipeline as module_of_pipelines
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.runtime.faults import Injector
from psgd.training.pieces.continuous_passes import NumberedStep
from psgd.training.pieces.continuous_training import ContinuousBackend


class There(np.ndarray):
    """An array with an address as CuPy's."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def there(shape):
    return np.full(shape, -1.0).view(There)


class Source:
    """Makes rows where it is told to, or in memory of its own."""

    def __init__(self, own):
        self.own, self.used_at = there((4, 3)) if own else None, []

    def choose(self, rows):
        self.rows = rows

    def write(self, n, x, y):
        found = x if self.own is None else self.own[:n]
        found[...] = self.rows[:, None]
        y[...] = self.rows
        return found, y

    def used(self):
        self.used_at.append(self.rows[0])


@pytest.mark.parametrize("own", [False, True])
def test_steps_under_way_have_samples_of_their_own(own):
    with played_cupy():
        from psgd.training.pieces.cuda_continuous_backend import CudaContinuousBackend

        backend = object.__new__(CudaContinuousBackend)
    backend._source, backend._first, backend._shape, backend._steps = Source(own), True, (3, 1), 0
    backend._ring = [(there((4, 3)), there(4)) for _ in range(2)]
    made, touched = [], []
    for turn in range(3):
        made.append(backend._lasting(turn, np.arange(turn, turn + (3 if turn == 2 else 4)), touched.append))
        if turn == 1:
            assert [x[0, 0, 0] for x, _ in made] == [0, 1]  # the first one's are still there
    assert [x.shape for x, _ in made] == [(4, 3, 1), (4, 3, 1), (3, 3, 1)]
    assert made[2][0].data.ptr == made[0][0].data.ptr != made[1][0].data.ptr
    assert made[1][1].tolist() == [1, 2, 3, 4] and made[2][1].tolist() == [2, 3, 4]
    assert backend._steps == 3 and backend._source.used_at == [0, 1, 2] and len(touched) == 3
    backend._source = None
    assert backend._lasting(3, np.arange(4), touched.append) == (None, None) and len(touched) == 3


class Rows:
    """Samples made by the host, in memory of its own where it has some."""

    def __init__(self, split, statistics, most, steps=None, own=False):
        self.samples = split.samples
        self._batches, self._own = (
            Batches(split, statistics, most),
            there((most, split.x[0].size)).astype(np.float32) if own else None,
        )

    def choose(self, rows):
        self._chosen = self._batches.fetch(rows)

    def write(self, n, x, y):
        found, y = (x if self._own is None else self._own)[:n], y[:n]
        found[...], y[...] = self._chosen[0].reshape(n, -1), self._chosen[1]
        return found, y

    def used(self):
        if self._own is not None:
            self._own.fill(np.nan)

    def ordered(self, start, stop, x, y):
        self.choose(np.arange(start, stop))
        return self.write(stop - start, x, y)


@contextlib.contextmanager
def simulated_gpu():
    """NumPy for CuPy, and sources of samples that need no kernel."""
    shim = ModuleType("cupy")
    shim.empty = lambda shape, dtype: np.empty(shape, dtype).view(There)
    shim.empty_like, shim.zeros, shim.zeros_like = np.empty_like, np.zeros, np.zeros_like
    pinned, samples = ModuleType("psgd.backend.pinned"), ModuleType("psgd.backend.samples")
    pinned.wait = lambda: None
    samples.Resident, samples.Streamed, samples.Source = Rows, functools.partial(Rows, own=True), object
    pieces = importlib.import_module("psgd.training.pieces")
    made = [f"psgd.training.pieces.{name}" for name in ("cuda_pipeline_backend", "cuda_continuous_backend")]
    with pytest.MonkeyPatch.context() as patch:
        for each in (shim, pinned, samples):
            patch.setitem(sys.modules, each.__name__, each)
        for each, name in ((pinned, "pinned"), (samples, "samples")):
            patch.setattr(f"psgd.backend.{name}", each, raising=False)
        for name in made:  # bound to these, so that nobody else may find them
            patch.delitem(sys.modules, name, raising=False)
        fake = FakeGpu()
        patch.setattr(module_of_pipelines, "_gpu", lambda: fake)
        yield np, fake
    for name in made:
        sys.modules.pop(name, None)
        if hasattr(pieces, last := name.rpartition(".")[2]):
            delattr(pieces, last)


@contextlib.contextmanager
def real_gpu(comm):
    xp = cupy()
    from psgd.collectives.device.pick_gpu import choose_device

    choose_device(comm)
    yield xp, SimpleNamespace(stages=[])


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("place", ["simulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_steps_are_those_of_the_host(comm, place, keep):
    dataset = load("digits")
    statistics, options = validate(dataset), OptimizerOptions(create("momentum", 0.9), Constant(0.05))
    model = build("mlp", dataset.sample_shape, dataset.classes, hidden=16)
    cuts, found = ((), (2,), (1, 2))[comm.size - 1], []
    with real_gpu(comm) if place == "gpu" else simulated_gpu() as (xp, fake):
        from psgd.training.pieces.cuda_continuous_backend import CudaContinuousBackend

        for device in ("cuda", "cpu"):
            with PipeDream(comm, model, cuts, batch=20, microbatches=2, device=device) as pipeline:
                common = pipeline, comm, dataset, statistics, 20
                gpu, fake.stages = device == "cuda", pipeline._captured
                backend = CudaContinuousBackend(*common, keep=keep) if gpu else ContinuousBackend(*common)
                params = (xp if gpu else np).asarray(pipeline.init(3))
                backend.prepare(params)
                grads = (xp if gpu else np).zeros_like(params)
                backend.bind(params, grads)
                optimizer, losses = Optimizer(params, options), []

                def take(step, loss, grads=grads, optimizer=optimizer, losses=losses):
                    optimizer.take(grads, 1.0, 20 * step.number)
                    losses.append(loss)

                for first in (0, 30):
                    rows = [np.arange(20 * k, 20 * k + (20 if k % 30 < 29 else 7)) for k in range(first, first + 30)]
                    steps = [NumberedStep(first + k, first + k, each) for k, each in enumerate(rows)]
                    backend.train(steps, take, Injector("", 0, 1))
                backend.wait()
                found.append(
                    (losses, params if isinstance(params, np.ndarray) else params.get(), backend.evaluate(0, 1))
                )
    (losses, params, evaluated), (expected, wanted, there) = found
    if place == "simulated":
        assert losses == expected and np.array_equal(params, wanted) and evaluated == pytest.approx(there)
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    np.testing.assert_allclose(params, wanted, rtol=1e-2, atol=1e-4)
    assert evaluated[0] == pytest.approx(there[0], abs=2) and evaluated[1] == pytest.approx(there[1], rel=1e-2)
    comm.Barrier()
