"""What each layer of a model costs on this machine: seconds by trying it, bytes by counting its arrays."""

import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from psgd.kernels.array import Array, array_module
from psgd.nn import sequential
from psgd.nn.layer import Room
from psgd.nn.stage import Stage
from psgd.parallel.cuts.partition import LayerCost
from psgd.runtime.rng import generator


def measure(stage: Stage, x: Array, state_vectors: int = 0, repeats: int = 5) -> list[LayerCost]:
    """Returns the cost of each layer. Makes one layer's parameters and buffers at a time, never all of them.

    Args:
        stage: or a model; nothing needs to be bound, and nothing of it changes.
        x: one microbatch of samples, in the stage's dtype, on the device that is measured.
        state_vectors: that the update rule keeps, each as long as the parameters: Adam 2, momentum 1.
        repeats: tries, of which the fastest counts; one more before them compiles.
    """
    xp, batch = array_module(x), len(x)
    steps, _ = sequential.fit(stage.layers, stage.input_shape)
    first, costs = sequential.first_with_parameters(steps), list[LayerCost]()
    x = x.reshape(batch, *stage.input_shape)
    for index, step in enumerate(steps):
        rng = generator(0, "init", index)
        drawn = [spec.initializer.draw(rng, spec.shape).astype(stage.dtype) for spec in step.specs]
        params = tuple(map(xp.asarray, drawn))
        grads = tuple(map(xp.empty_like, params))
        room = Room(xp, batch, stage.dtype, step.shape, wants_dx=index > first)
        layer, state = step.layer, step.layer.allocate(room)
        y = layer.forward(state, x, params).copy()
        dy = xp.zeros_like(y)

        def passes(
            layer: Any = layer, state: Any = state, params: Any = params, grads: Any = grads, x: Any = x, dy: Any = dy
        ) -> None:
            layer.forward(state, x, params)
            layer.backward(state, dy, params, grads)

        passes()
        seconds = min(_timed(passes, xp) for _ in range(repeats))
        held = (2 + state_vectors) * sum(each.nbytes for each in params)
        costs.append(LayerCost(seconds, held, _nbytes(state, set())))
        x = y
    return costs


def _timed(function: Callable[[], None], xp: Any) -> float:
    start = time.perf_counter()
    function()
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()
    return time.perf_counter() - start


def _nbytes(value: Any, seen: set[int]) -> int:
    """Bytes of all arrays that a layer's state has, each once; views are of another's memory."""
    if is_dataclass(value):
        return sum(_nbytes(getattr(value, field.name), seen) for field in fields(value))
    if isinstance(value, (list, tuple)):
        return sum(_nbytes(each, seen) for each in value)
    if not hasattr(value, "nbytes") or id(value) in seen or getattr(value, "base", None) is not None:
        return 0
    seen.add(id(value))
    return int(value.nbytes)
