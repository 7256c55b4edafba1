"""What `psgd bench offload` measures: the parts of a step, steps without offload, offloaded steps."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import cupy
import numpy as np

from psgd.backend.losses import Losses
from psgd.backend.offload.bus import CudaBus, pinned_copy, zeros_pinned
from psgd.backend.offload.kept_layers import KeptLayers
from psgd.backend.offload.streamed_layers import StreamedLayers
from psgd.estimate import activations
from psgd.kernels.array import Array
from psgd.launch.bench.pool_peak import PoolPeak
from psgd.metrics.run_metrics import RunMetrics
from psgd.nn.gates import apart
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.optim import rules
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant
from psgd.worker import starter
from psgd.worker.interface import Worker

VERIFIED, LR = 3, 1e-4
MODES = ("optimizer", "late", "parameters")


@dataclass(frozen=True)
class OffloadTrial:
    """What is trained and how long; the options of the command."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    rule: str
    threads: int | None
    steps: int
    repeats: int

    def model(self) -> Model:
        """On no vector yet."""
        sizes = {"layers": self.layers, "width": self.width, "heads": self.heads}
        return build("gpt", (self.context,), self.vocabulary, tokens=True, **sizes)

    def options(self) -> OptimizerOptions:
        """Of the optimizer."""
        return OptimizerOptions(rules.create(self.rule), constant(LR))


class _OnDevice:
    """Steps with everything on the GPU."""

    def __init__(self, task: OffloadTrial, params: Array, batch: int) -> None:
        self._model, self.params = task.model(), cupy.asarray(params)
        self._worker = starter.create_local(self.params, task.options(), params.size, RunMetrics(1))
        self._worker.start()
        self._model.bind(self.params, self._worker.grads)
        self._context, self._losses = self._model.context(batch), Losses()

    def gradient(self, x: Array, y: Array) -> None:
        """Forward and backward."""
        self._model.gradient(self._context, x, y, loss_of=self._losses.start)

    def step(self, x: Array, y: Array) -> None:
        """The same, and the optimizer."""
        self.gradient(x, y)
        self._worker.step(len(x), 0.0)

    def final(self) -> Array:
        """On the host, waited for."""
        return self.params.get()


class _OnHost:
    """Offloaded steps."""

    def __init__(self, task: OffloadTrial, params: Array, batch: int, mode: str) -> None:
        updates, self._bus = HostUpdates(task.threads, pinned=True), CudaBus()
        self._layers: Any = (
            StreamedLayers(task.model(), self._bus, updates)
            if mode == "parameters"
            else KeptLayers(task.model(), self._bus, updates, behind=int(mode == "late"))
        )
        self.params = pinned_copy(params)
        self.worker: Worker = starter.create_local(self.params, task.options(), params.size, RunMetrics(1), updates)
        self.worker.start()
        self._layers.bind(self.params, self.worker.grads)
        self._context, self._losses = self._layers.model.context(batch), Losses()
        self._updates = updates

    def step(self, x: Array, y: Array) -> None:
        self._layers.begin(self.worker.overlap(len(x)))
        self._layers.model.gradient(self._context, x, y, self._layers.ready, self._losses.start)
        self._layers.finish()
        self.worker.step(len(x), 0.0)

    def final(self) -> Array:
        self._updates.wait()
        return self.params.copy()


def rows(task: OffloadTrial, batches: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields a row for each batch and each way of offloading. Blocks."""
    params = task.model().init(0)
    buses = {mode: _bus_seconds(task, params, mode == "parameters") for mode in MODES}
    update = _update_seconds(task, params)
    for batch in batches:
        rng = np.random.default_rng(batch)
        x = cupy.asarray(rng.integers(0, task.vocabulary, (batch, task.context)).astype(np.float32))
        y = cupy.asarray(rng.integers(0, task.vocabulary, (batch, task.context)))
        near = _OnDevice(task, params, batch)
        expected = _first_steps(near, x, y)
        compute = _seconds(partial(near.gradient, x, y), task)
        without = _seconds(partial(near.step, x, y), task)
        del near
        for mode in MODES:
            before, peak = _held(), PoolPeak()
            far = _OnHost(task, params, batch, mode)
            got = _first_steps(far, x, y)
            most = peak.close() - before
            step = _seconds(partial(far.step, x, y), task)
            far.final()
            del far
            same = _repeats(task, params, batch, x, y, got) if mode == "late" else bool((got == expected).all())
            yield {
                **{"batch_size": batch, "offload": mode, "parameters": params.size, "rule": task.rule},
                **{"compute": compute, "bus": buses[mode], "update": update, "step": step, "without": without},
                "device_bytes": most,
                "expected_bytes": expected_bytes(task.model(), batch, mode),
                "verified": same,
            }


def expected_bytes(model: Model, batch: int, mode: str) -> int:
    """What the GPU should hold: two vectors, or two layers and their gradients; activations; tied gradients."""
    layers = apart.parts(model)
    most, own = max(each.size for each in layers), max(len(each.own) for each in layers)
    held = 2 * (most + own) if mode == "parameters" else 2 * model.layout.size
    tied = sum(len(part) for each in layers for part in each.tied)
    return (held + tied) * int(model.dtype.itemsize) + activations.count(model, batch, device="cuda")


def _first_steps(contender: Any, x: Array, y: Array) -> Array:
    for _ in range(VERIFIED):
        contender.step(x, y)
    return contender.final()


def _repeats(task: OffloadTrial, params: Array, batch: int, x: Array, y: Array, got: Array) -> bool:
    return bool((_first_steps(_OnHost(task, params, batch, "late"), x, y) == got).all())


def _bus_seconds(task: OffloadTrial, params: Array, streams: bool) -> float:
    """All copies of one step, both ways at once, from and to two layers' memory where layers stream."""
    bus, layers = CudaBus(), apart.parts(task.model())
    owns = [each.own for each in layers if each.own]
    ups = [part for each in layers for part in each.parts if part] if streams else owns
    ups += [part for each in layers[-3::-1] for part in each.parts if part] if streams else []
    host, grads = pinned_copy(params), zeros_pinned(params)
    there = bus.device(params.size, params.dtype)

    def copy() -> None:
        mark = bus.mark()
        for part in ups:
            bus.up(there[part.start : part.stop], host[part.start : part.stop], None)
        moments = [
            bus.down(grads[part.start : part.stop], there[part.start : part.stop], mark) for part in reversed(owns)
        ]
        moments.append(bus.up(there[:1], host[:1], None))
        for moment in moments:
            moment.wait()

    return _seconds(copy, task)


def _update_seconds(task: OffloadTrial, params: Array) -> float:
    """The optimizer's step on the host, by layers."""
    vector, grads = pinned_copy(params), pinned_copy(params)
    optimizer, updates = task.options().create(vector), HostUpdates(task.threads)
    updates.open(optimizer, grads)
    owns = [each.own for each in apart.parts(task.model()) if each.own]

    def update() -> None:
        optimizer.begin(0)
        for part in reversed(owns):
            updates.submit(part, optimizer.lr, 1.0, optimizer.version)
        updates.wait()

    seconds = _seconds(update, task)
    updates.close()
    return seconds


def _seconds(call: Callable[[], Any], task: OffloadTrial) -> float:
    """Seconds of one of many calls, each of which may overlap with the next one: the median round, after a warm one.

    Updates that are under way at a round's end are so at its beginning too.
    """
    found = []
    for _ in range(1 + task.repeats):
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        for _ in range(task.steps):
            call()
        cupy.cuda.Device().synchronize()
        found.append((time.perf_counter() - began) / task.steps)
    return float(median(found[1:]))


def _held() -> int:
    """Bytes of arrays on the GPU. What is no longer used but not free yet would be freed meanwhile: that goes first."""
    gc.collect()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    held: int = pool.used_bytes()
    return held
