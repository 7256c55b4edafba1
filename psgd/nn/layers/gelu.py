"""The Gaussian error linear unit, in its form with tanh."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.layers import smooth_unit
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class GELUState:
    """Buffers of one context, and the input that backward needs again."""

    y: Array
    x: Array = None


@dataclass(frozen=True)
class GELU(Layer[GELUState]):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 by element: PyTorch's GELU with `approximate="tanh"`."""

    name = "gelu"
    reads_output = False

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def allocate(self, room: Room) -> GELUState:
        return GELUState(room.empty(*room.shape))

    def forward(self, state: GELUState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        state.x = x.reshape(-1)
        smooth_unit.gelu(state.x, y.reshape(-1))
        return y

    def backward(self, state: GELUState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy times the slope, in place."""
        smooth_unit.gelu_backward(state.x, dy.reshape(-1))
        state.x = None
        return dy
