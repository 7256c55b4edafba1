"""The residual connection: y = x + f(x), f being any layers that keep the samples' shape."""

from dataclasses import dataclass
from typing import Any

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.nn import sequential
from psgd.nn.buffers import forward_only
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape


@dataclass
class ResidualState:
    """Buffers of one context: the branch's, and those of the sums.

    Attributes:
        branch: of the inner layers.
        y: output.
        dx: None where the input's gradient is not wanted.
    """

    branch: sequential.Inner
    y: Array
    dx: Array


@dataclass(frozen=True)
class Residual(Layer[ResidualState]):
    """x plus the output of `layers`, in sequence, for x (He et al. 2016).

    Its parameters are theirs, named "linear1.weight" and so on. Its whole gradient is ready at once.
    """

    layers: tuple[Layer[Any], ...]
    name = "residual"
    reads_output = False  # the sum has a buffer of its own

    def output_shape(self, shape: Shape) -> Shape:
        _, output = sequential.fit(self.layers, shape)
        if output != shape or not self.layers:
            raise UsageError(f"Residual needs layers that keep the samples' shape {shape}, these return {output}")
        return shape

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        steps, _ = sequential.fit(self.layers, shape)
        return tuple(spec for step in steps for spec in step.specs)

    def allocate(self, room: Room) -> ResidualState:
        steps, _ = sequential.fit(self.layers, room.shape)
        branch = sequential.allocate_inside(steps, forward_only.inside(room))
        return ResidualState(branch, room.empty(*room.shape), room.dx())

    def forward(self, state: ResidualState, x: Array, params: Arrays) -> Array:
        y = state.branch.forward(x, params)
        return array_module(x).add(x, y, out=state.y[: len(x)])

    def backward(self, state: ResidualState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dx = dy + the branch's input gradient."""
        dx = self.backward_input(state, dy, params, grads)
        self.backward_weights(state, grads)
        return dx

    def late(self, shape: Shape) -> tuple[int, ...]:
        steps, _ = sequential.fit(self.layers, shape)
        places: list[int] = []
        start = 0
        for step in steps:
            places += [start + place for place in step.layer.late(step.shape)]
            start += len(step.specs)
        return tuple(places)

    def backward_input(self, state: ResidualState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        dx = None if state.dx is None else state.dx[: len(dy)]
        if dx is not None:
            dx[...] = dy  # the branch may overwrite dy
        for layer, inner, mine in state.branch.backwards:
            dy = layer.backward_input(inner, dy, params[mine], grads[mine])
        return None if dx is None else array_module(dx).add(dx, dy, out=dx)

    def backward_weights(self, state: ResidualState, grads: Arrays) -> None:
        for layer, inner, mine in state.branch.backwards:
            layer.backward_weights(inner, grads[mine])
