"""Layers of one unit as one layer: it waits for their parameters before it computes, and lets them go after."""

from dataclasses import dataclass
from typing import Any, Protocol

from psgd.kernels.array import Array
from psgd.nn import sequential
from psgd.nn.layer import Arrays, CutLoss, Layer, ParameterSpec, Room, Shape


class Visited(Protocol):
    """What is told when a unit's turn begins and ends: `psgd.parallel.sharded.exchange.Exchange`."""

    def arrive(self, unit: int, backward: bool = False) -> None:
        """The unit's turn begins: blocks until it is there."""

    def leave(self, unit: int, backward: bool = False) -> None:
        """The unit's turn ends, backward with its gradient."""

    def used(self, unit: int) -> None:
        """Backward needs the unit's parameters no more."""


@dataclass(eq=False)
class GatheredState:
    """Buffers of one context.

    Attributes:
        inner: for each layer: itself, its state, where its parameters are among all.
        backwards: those of them that backward needs, last first.
    """

    inner: list[tuple[Layer[Any], Any, slice]]
    backwards: list[tuple[Layer[Any], Any, slice]]


@dataclass(frozen=True)
class Gathered(Layer[GatheredState]):
    """Consecutive layers of a model, which keep their places in it: names, first values, random numbers.

    Its gradients are final when `Stage` says so, which is behind `backward`: `psgd.parallel.sharded.by_unit`.

    Attributes:
        steps: the layers in their places.
        unit: its number.
        exchange: of the passes that it takes part in.
    """

    steps: tuple[sequential.Step, ...]
    unit: int
    exchange: Visited
    name = "gathered"

    @property
    def reads_output(self) -> bool:
        return self.steps[-1].layer.reads_output

    @property
    def loss(self) -> CutLoss | None:
        return self.steps[-1].layer.loss

    def output_shape(self, shape: Shape) -> Shape:
        for step in self.steps:
            shape = step.layer.output_shape(shape)
        return shape

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return tuple(spec for step in self.steps for spec in step.specs)

    def allocate(self, room: Room) -> GatheredState:
        inner: list[tuple[Layer[Any], Any, slice]] = []
        start = 0
        for step, state in zip(self.steps, sequential.allocate(self.steps, room), strict=True):
            stop = start + len(step.specs)
            inner.append((step.layer, state, slice(start, stop)))
            start = stop
        first = 0 if room.wants_dx else sequential.first_with_parameters(self.steps)
        return GatheredState(inner, inner[first:][::-1])

    def forward(self, state: GatheredState, x: Array, params: Arrays) -> Array:
        self.exchange.arrive(self.unit)
        for layer, inner, mine in state.inner:
            x = layer.forward(inner, x, params[mine])
        self.exchange.leave(self.unit)
        return x

    def backward(self, state: GatheredState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        self.exchange.arrive(self.unit, backward=True)
        for layer, inner, mine in state.backwards:
            dy = layer.backward(inner, dy, params[mine], grads[mine])
        self.exchange.used(self.unit)
        return dy
