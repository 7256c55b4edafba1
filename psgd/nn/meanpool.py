"""The mean over a sample's tokens."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.pooling import mean_pool, mean_pool_backward
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class MeanPoolState:
    """Buffers of one context."""

    y: Array
    dx: Array


@dataclass(frozen=True)
class MeanPool(Layer[MeanPoolState]):
    """(tokens, features) to (features,): each feature's mean over the tokens."""

    name = "meanpool"

    @property
    def reads_output(self) -> bool:
        """False: the gradient is the same whatever the mean was."""
        return False

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (features,)."""
        if len(shape) != 2:
            raise UsageError(f"MeanPool takes samples (tokens, features), got samples of shape {shape}")
        return shape[1:]

    def allocate(self, room: Room) -> MeanPoolState:
        """Makes output and input gradient."""
        return MeanPoolState(room.empty(room.shape[1]), room.empty(*room.shape) if room.wants_dx else None)

    def forward(self, state: MeanPoolState, x: Array, params: Arrays) -> Array:
        """Returns the means."""
        y = state.y[: len(x)]
        mean_pool(x, y)
        return y

    def backward(self, state: MeanPoolState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Gives each token an equal share."""
        dx = state.dx[: len(dy)]
        mean_pool_backward(dy, dx)
        return dx
