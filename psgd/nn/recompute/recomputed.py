"""Activation checkpointing: what a few layers keep for backward is computed a second time instead (Chen et al. 2016).

Of each segment of layers only the output stays. All segments of a context use the same buffers inside. Backward runs a
segment's forward pass again, then its backward pass: one more forward pass in all, but for the last segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from psgd.kernels.array import Array
from psgd.nn import sequential
from psgd.nn.buffers import forward_only
from psgd.nn.buffers.pooled import PooledArrays
from psgd.nn.layer import Arrays, Room

_NEWEST = "newest"
"""In a context's pool: the state whose activations the shared buffers hold."""


@dataclass(eq=False)
class RecomputedState:
    """Buffers of one context.

    Attributes:
        inner: of the layers.
        y: the segment's output, its own.
        carry: shared; holds the output's gradient, which may lie in a buffer that the layers write.
        pool: of the context.
        x: input that backward starts from again.
    """

    inner: sequential.Inner
    y: Array
    carry: Array
    pool: dict[Any, Any]
    x: Array = None


@dataclass(frozen=True)
class Recomputed(sequential.SeveralAsOne[RecomputedState]):
    """The layers of a segment.

    `psgd.nn.stage.Stage.recomputed` makes it. The bits are those without it: what is drawn is drawn by key.

    Attributes:
        steps: the layers in their places.
    """

    steps: tuple[sequential.Step, ...]
    name = "recomputed"
    reads_output = False  # the output has a buffer of its own

    def allocate(self, room: Room) -> RecomputedState:
        within = replace(room, xp=PooledArrays(room.xp, room.pool)) if room.trains else forward_only.inside(room)
        inner = sequential.allocate_inside(self.steps, within)
        shape = self.output_shape(room.shape)
        y, carry = room.empty(*shape), within.empty(*shape) if room.trains else None
        return RecomputedState(inner, y, carry, room.pool)

    def forward(self, state: RecomputedState, x: Array, params: Arrays) -> Array:
        state.x = x
        y = state.y[: len(x)]
        y[...] = self._run(state, params)
        return y

    def backward(self, state: RecomputedState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Forward once more, where the buffers hold another segment's activations, and backward."""
        carry = state.carry[: len(dy)]
        carry[...] = dy
        if state.pool.get(_NEWEST) is not state:
            self._run(state, params)
        state.pool[_NEWEST] = state.x = None
        return state.inner.backward(carry, params, grads)

    def _run(self, state: RecomputedState, params: Arrays) -> Array:
        state.pool[_NEWEST] = state
        return state.inner.forward(state.x, params)


def merged(steps: Sequence[sequential.Step], segments: Sequence[range]) -> list[sequential.Step]:
    """Returns the layers with each segment as one `Recomputed` layer; `segments` are in order and do not overlap."""
    result: list[sequential.Step] = []
    done = 0
    for segment in segments:
        result += steps[done : segment.start]
        inside = tuple(steps[segment.start : segment.stop])
        specs = tuple(spec for step in inside for spec in step.specs)
        result.append(sequential.Step(Recomputed(inside), "", inside[0].shape, specs, inside[0].index))
        done = segment.stop
    return [*result, *steps[done:]]


def single(steps: Sequence[sequential.Step]) -> list[sequential.Step]:
    """Returns every layer in its own place, those of segments too."""
    return [each for step in steps for each in (step.layer.steps if isinstance(step.layer, Recomputed) else (step,))]
