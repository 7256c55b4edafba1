"""The mean over a sample's tokens."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.pooling import mean_pool, mean_pool_backward
from psgd.nn.layer import Arrays, Layer, OutputState, Room, Shape


@dataclass(frozen=True)
class MeanPool(Layer[OutputState]):
    """(tokens, features) to (features,): each feature's mean over the tokens."""

    name = "meanpool"
    reads_output = False  # the gradient is the same whatever the mean was

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise UsageError(f"MeanPool takes samples (tokens, features), got samples of shape {shape}")
        return shape[1:]

    def allocate(self, room: Room) -> OutputState:
        return OutputState(room.empty(room.shape[1]), room.dx())

    def forward(self, state: OutputState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        mean_pool(x, y)
        return y

    def backward(self, state: OutputState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Gives each token an equal share."""
        dx = state.dx[: len(dy)]
        mean_pool_backward(dy, dx)
        return dx
