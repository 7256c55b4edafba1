"""Max pooling over square windows that do not overlap."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.pooling import max_pool, max_pool_backward
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class MaxPoolState:
    """Buffers of one context. dx stays 0 where no window lies."""

    y: Array
    winner: Array
    dx: Array


@dataclass(frozen=True)
class MaxPool(Layer[MaxPoolState]):
    """Maximum of each size x size window of (height, width, channels); a remainder is left out.

    Attributes:
        size: side and stride of the windows, 1 to 15.
    """

    size: int = 2
    name = "pool"
    reads_output = False  # backward needs the winners alone

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise UsageError(f"MaxPool takes images (height, width, channels), got samples of shape {shape}")
        if not 1 <= self.size <= 15:
            raise UsageError(f"MaxPool: expected a size from 1 to 15, got {self.size}")
        if min(shape[:2]) < self.size:
            raise UsageError(f"MaxPool: window {self.size} is larger than the image {shape[0]} x {shape[1]}")
        return shape[0] // self.size, shape[1] // self.size, shape[2]

    def allocate(self, room: Room) -> MaxPoolState:
        shape = self.output_shape(room.shape)
        dx = room.zeros(*room.shape) if room.wants_dx else None
        return MaxPoolState(room.empty(*shape), room.empty(*shape, dtype="uint8"), dx)

    def forward(self, state: MaxPoolState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        max_pool(x, y, state.winner[: len(x)], self.size)
        return y

    def backward(self, state: MaxPoolState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Hands each gradient to its window's winner."""
        dx = state.dx[: len(dy)]
        max_pool_backward(dy, state.winner[: len(dy)], dx, self.size)
        return dx
