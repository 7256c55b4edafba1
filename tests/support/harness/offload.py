"""Steps of a model whose optimizer is on the host and whose layers are on a played GPU, and the same without."""

import numpy as np

from harness.played_bus import PlayedBus, seen, watched
from psgd.backend.host import HostBackend
from psgd.backend.offload.kept_layers import KeptLayers
from psgd.backend.offload.streamed_layers import StreamedLayers
from psgd.metrics.run_metrics import RunMetrics
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import step as stepwise
from psgd.worker import starter

STEPS, BATCH = 7, 6
SCHEDULE = stepwise(0.1, 2 * BATCH, 0.5)


def _mlp():
    return Model([Linear(20, relu=True), Linear(13, relu=True), Linear(20, relu=True), Linear(5)], (9,))


def _recomputed():
    return _mlp().recomputed((range(0, 1), range(1, 3)))


def _gpt():  # its scores are tied to its first layer, and it has layers without parameters
    return build("gpt", (8,), 11, tokens=True, layers=2, width=16, heads=2)


MODELS = {
    "mlp": _mlp,
    "recomputed": _recomputed,
    "one layer": lambda: Model([Linear(5)], (9,)),
    "gpt": _gpt,
}


def batches(model, steps=STEPS):
    """Samples and labels of each step."""
    rng = np.random.default_rng(5)
    for _ in range(steps):
        if model.tokens > 1:
            x = rng.integers(0, model.classes, (BATCH, *model.input_shape)).astype(np.float32)
            yield x, rng.integers(0, model.classes, (BATCH, model.tokens))
        else:
            yield rng.normal(size=(BATCH, *model.input_shape)).astype(np.float32), rng.integers(0, 5, BATCH)


def local(model, params, rule, clip, updates=None):
    """A single rank's worker, started."""
    made = starter.create_local(params, OptimizerOptions(rule, SCHEDULE, clip), 64, RunMetrics(1), updates)
    made.start()
    return made


def host_steps(make, rule, clip, evaluates=True):
    """What each step's loss and parameters are, and what evaluations say, without a GPU."""
    model = make()
    params = model.init(3)
    worker = local(model, params, rule, clip)
    model.bind(params, worker.grads)
    ctx, found = model.context(BATCH), []
    for number, (x, y) in enumerate(batches(model)):
        found.append(model.gradient(ctx, x, y))
        worker.step(BATCH, found[-1])
        if evaluates and number % 3 == 1:
            found.append(model.evaluate(ctx, x, y))
    return [*found, params]


def late_steps(make, rule, clip):
    """The same with gradients at the parameters of the step before: all that is here is one vector more."""
    model = make()
    params = model.init(3)
    shown = params.copy()
    worker = local(model, params, rule, clip)
    model.bind(shown, worker.grads)
    ctx, found = model.context(BATCH), []
    for x, y in batches(model):
        found.append(model.gradient(ctx, x, y))
        shown[:] = params
        worker.step(BATCH, found[-1])
    return [*found, params]


def offloaded_steps(place, bus, make, rule, clip, by_parts=True, evaluates=True):
    """The same with layers that `place(model, bus, updates)` has on the played GPU."""
    updates = HostUpdates(2)
    layers = place(watched(make(), bus), bus, updates)
    model = layers.model
    params = make().init(3)
    worker = local(model, params, seen(rule, bus), clip, updates if by_parts else None)
    layers.bind(params, worker.grads)
    ctx, found = model.context(BATCH), []
    for number, (x, y) in enumerate(batches(model)):
        ready = worker.overlap(BATCH)
        layers.begin(ready)
        found.append(model.gradient(ctx, x, y, layers.ready))
        layers.finish()
        worker.step(BATCH, found[-1])
        if evaluates and number % 3 == 1:
            layers.begin()
            found.append(model.evaluate(ctx, x, y))
    worker.finish()
    return [*found, params]


class PlayedBackend(HostBackend):
    """A worker's model and data, with its layers on a played GPU: `OffloadedBackend` without CUDA."""

    def __init__(self, config, model, dataset, statistics, updates):
        bus = PlayedBus()
        self._layers = (
            StreamedLayers(model, bus, updates)
            if config.offload == "parameters"
            else KeptLayers(model, bus, updates, config.offload_staleness)
        )
        super().__init__(self._layers.model, dataset, statistics, config.batch_size)

    def prepare(self, params):
        self.bind(params, np.zeros_like(params))
        self.gradient(np.zeros(1, np.int64))

    def bind(self, params, grads):
        self._layers.bind(params, grads)

    def gradient(self, indices, on_ready=None, touch=None):
        self._layers.begin(on_ready)
        loss = super().gradient(indices, self._layers.ready, touch)
        self._layers.finish()
        return loss

    def evaluate(self, part, parts):
        self._layers.begin()
        return super().evaluate(part, parts)
