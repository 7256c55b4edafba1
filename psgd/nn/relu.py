"""The rectifier: y = max(x, 0)."""

from dataclasses import dataclass

from psgd.kernels.array import Array, array_module
from psgd.kernels.layers.activation import relu_backward
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class ReLUState:
    """Buffers of one context."""

    y: Array
    mask: Array


@dataclass(frozen=True)
class ReLU(Layer[ReLUState]):
    """max(x, 0) by element; the gradient at 0 is 0."""

    name = "relu"
    own_output = True

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def allocate(self, room: Room) -> ReLUState:
        return ReLUState(room.empty(*room.shape), room.empty(*room.shape) if room.trains else None)

    def forward(self, state: ReLUState, x: Array, params: Arrays) -> Array:
        return array_module(x).maximum(x, 0, out=state.y[: len(x)])

    def backward(self, state: ReLUState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy with 0 where the output was 0, in place."""
        n = len(dy)
        relu_backward(state.y[:n], dy, state.mask[:n])
        return dy
